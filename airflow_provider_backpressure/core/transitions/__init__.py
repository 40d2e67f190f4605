"""What every ledger decides and learns in the same way, a room for each thing that is decided about.

Pure functions from values to values, taken under the hydration's lock: the ledger in memory and the one on tables
differ in where values are kept, never in what becomes of them.
"""

from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.exceptions import LedgerRefused, LedgerUnavailable, PlanSuperseded


def unknown(hydration_id: str) -> LedgerRefused:
    """Return the error for an id that the ledger does not have."""
    return LedgerRefused(f"The ledger has no hydration {hydration_id}.")


def unknown_range(plan_id: str, seq: int) -> LedgerRefused:
    """Return the error for a range that the ledger does not have."""
    return LedgerRefused(f"The ledger has no range {seq} of plan {plan_id}.")


def without_plan(hydration_id: str) -> LedgerRefused:
    """Return the error for a hydration that has nothing to finish."""
    return LedgerRefused(f"The hydration {hydration_id} has no plan yet.")


def ownership_error(*, source_identity: str, sink_identity: str, owner: str, asking: str) -> LedgerRefused:
    """Return the error for a second owner."""
    return LedgerRefused(
        f"The hydration of {source_identity} into {sink_identity} is owned by {owner}: {asking} may not run it as "
        f"well. If {owner} was renamed, run `airflow backpressure change-owner {owner} {asking}`."
    )


def still_owned(sink_identity: str, owner: str, reason: str) -> LedgerRefused:
    """Return the error for a hydration on which its owner still works."""
    return LedgerRefused(
        f"{sink_identity} stays with {owner}: {reason}. Pause that DAG and let its run end, or mark the run failed, "
        "and try again."
    )


def supersession_error(plan_id: str, epoch: int) -> PlanSuperseded:
    """Return the error for a lane whose plan a later life of it has taken over."""
    return PlanSuperseded(f"Plan {plan_id} is no longer read under epoch {epoch}: a later lane has taken it over.")


def check_verified(plan_id: str | None, verified: str | None) -> None:
    """Raise ``PlanSuperseded`` where another plan was verified than the one that a hydration has."""
    if verified is not None and plan_id != verified:
        raise PlanSuperseded(f"Plan {verified} was verified, and another run has planned again since.")


def still_open(seq: int, state: RangeState) -> LedgerRefused:
    """Return the error for a hydration that cannot be finished yet."""
    return LedgerRefused(f"Range {seq} is still {state}: the hydration is complete when every range is committed.")


def in_flight_still(hydration_id: str, number: int) -> LedgerUnavailable:
    """Return the error for a hydration whose ranges must not be taken from under its lanes."""
    return LedgerUnavailable(
        f"{number} ranges of hydration {hydration_id} are in flight: it can be rebuilt when they are over."
    )


def taken_address(hydration_id: str, *, source_identity: str, sink_identity: str) -> LedgerRefused:
    """Return the error for a hydration that cannot move to where another one is."""
    return LedgerRefused(
        f"{source_identity} into {sink_identity} is hydration {hydration_id}: forget the one that is to be given up."
    )


def still_held(hydration_id: str, number: int) -> LedgerRefused:
    """Return the error for a hydration that cannot be forgotten yet."""
    return LedgerRefused(f"{number} ranges of hydration {hydration_id} are in flight: it cannot be forgotten yet.")
