"""What must be true of a hydration after its end, whatever was killed on the way. It asks the databases."""

from collections import Counter
from collections.abc import Collection
from contextlib import closing

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.failpoints import Step
from airflow_provider_backpressure.core.gate.hydration_record import Phase
from airflow_provider_backpressure.core.planning.plan_result import Planned
from airflow_provider_backpressure.core.progress.rates_and_eta import total_progress
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.ledger.repository import SqlLedger
from tests.chaos.stage import Pass, Stage
from tests.support.composed import Composed
from tests.support.postgres import run
from tests.support.waiting import until


def fingerprint(endpoint: Endpoint, table: str) -> tuple[int, int, int]:
    """Return rows, distinct rows and the sum of the rows' hashes: equal for equal multisets, on any server."""
    query = "SELECT count(*), count(DISTINCT x::text), coalesce(sum(hashtextextended(x::text, 0)::numeric), 0)::text"
    ((rows, distinct, total),) = run(endpoint, f"{query} FROM {table} x")
    return int(rows), int(distinct), int(total)


def in_flight(passes: Collection[Pass]) -> set[str]:
    """Return the slices that were submitted, or about to be, and not written down as committed."""
    begun = {one.slice_id for one in passes if one.step is Step.BEFORE_SUBMIT}
    return begun - {one.slice_id for one in passes if one.step is Step.AFTER_LEDGER_COMMIT}


def read_again(passes: Collection[Pass], *, twins: bool = False) -> set[str]:
    """Return the slices of which blocks were copied in more than one go: by another attempt or another process.

    ``twins``: where Spark speculates, any attempt may have several processes.
    """
    goes = {(one.slice_id, one.tag, 0 if twins else one.pid) for one in copied(passes)}
    times = Counter(slice_id for slice_id, _, _ in goes)
    return {slice_id for slice_id, number in times.items() if number > 1}


def copied(passes: Collection[Pass]) -> list[Pass]:
    """Return the passes with a block of rows in the sink."""
    return [one for one in passes if one.step is Step.IN_COPY]


def check(stage: Stage, composed: Composed, planned: Planned, *, flying: set[str]) -> None:
    """Check everything. ``flying``: the slices that were in flight at the kill."""
    plan_id, hydration_id = planned.plan.plan_id, planned.hydration.id
    source = fingerprint(composed.source, composed.table)
    assert fingerprint(composed.sink, composed.target) == source, "target and source differ"

    with closing(SqlLedger(composed.ledger_url)) as ledger:
        records = ledger.ranges(plan_id)
        assert [record.seq for record in records] == list(range(planned.ranges))
        assert {record.state for record in records} == {RangeState.COMMITTED}
        assert [record.seq for record in records if record.lease_until is not None] == [], "a lease is left over"
        gate = ledger.gate(hydration_id)
        assert (gate.in_flight, gate.waiting, gate.reserved_bytes) == (0, 0, 0), "a credit is left over"
        progress = total_progress(ledger.statistics(hydration_id))
        assert (progress.committed, progress.total, progress.percent) == (source[0], source[0], 100.0)
        assert progress.read == source[0]
        assert ledger.finish(hydration_id).phase is Phase.STEADY_STATE

    markers = run(
        composed.sink,
        f"SELECT slice_id, rows, bytes, checksum, revoked FROM raw.backpressure_commit WHERE plan_id = '{plan_id}'",
    )
    told = sorted((record.slice_id, record.rows, record.bytes, record.checksum, False) for record in records)
    assert sorted(markers) == told, "ledger and markers differ"
    prefix = f"bp:{plan_id}:"
    left = f"SELECT 1 FROM pg_stat_activity WHERE starts_with(application_name, '{prefix}')"
    if stage.speculates:
        # Spark ends the slower twin in its own time.
        until(lambda: run(composed.sink, left) == [])
    assert run(composed.sink, left) == [], "a connection of an attempt is left over"

    assert read_again(stage.journal(), twins=stage.speculates) <= flying, (
        "a range was read again that was not in flight"
    )


def check_lake(composed: Composed, planned: Planned) -> None:
    """Check that a table of files has a marker of each range, which says what the ledger says."""
    plan_id = planned.plan.plan_id
    with composed.open() as ports:
        markers = ports.sink.markers(plan_id)
        assert {record.slice_id: record.checksum for record in ports.ledger.ranges(plan_id)} == {
            slice_id: marker.checksum for slice_id, marker in markers.items()
        }
        assert len(markers) == planned.ranges
