"""What the simulation has to notice: the product with one thing left out, each of which loses or doubles something."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from airflow_provider_backpressure.core.execution.lane_runner import Hydrator
from airflow_provider_backpressure.core.gate.credit_limits import GradedLimit
from airflow_provider_backpressure.core.planning.planner import Planner
from airflow_provider_backpressure.core.planning.range_splitter import RangeSplitter
from airflow_provider_backpressure.core.transitions import hydration_transitions as hydrating
from airflow_provider_backpressure.core.transitions import range_transitions as admission
from airflow_provider_backpressure.testing import MemorySink
from tests.support import simulated
from tests.support.ledger_model import LedgerModel
from tests.support.simulated import SimulatedSink

Patch = pytest.MonkeyPatch


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """Something left out. ``noticed``: part of what the simulation says of it, in one of the ways in which it shows."""

    name: str
    apply: Callable[[Patch], None]
    noticed: tuple[str, ...]

    def __str__(self) -> str:
        """Return the test's id."""
        return self.name


def _sink_takes_doubles(patch: Patch) -> None:
    commit = MemorySink.commit

    def doubling(self: MemorySink, spec: Any, piece: Any, keys: Any) -> Any:
        self._markers.pop((spec.plan_id, piece.slice_id), None)
        return commit(self, spec, piece, keys)

    patch.setattr(MemorySink, "commit", doubling)


def _task_reads_at_once(patch: Patch) -> None:
    patch.setattr(simulated, "recorded", lambda sink, spec: None)


def _lane_looks_for_no_marker(patch: Patch) -> None:
    patch.setattr(Hydrator, "_marker", lambda self, record: None)


def _credit_returned_on_submit(patch: Patch) -> None:
    admit = LedgerModel.admit

    def generous(self: Any, hydration_id: str, **request: Any) -> Any:
        permit = admit(self, hydration_id, **request)
        if permit is not None:
            self._tables.entry(hydration_id).in_flight.discard((permit.range.plan_id, permit.range.seq))
        return permit

    patch.setattr(LedgerModel, "admit", generous)


def _ledger_before_sink(patch: Patch) -> None:
    submit = Hydrator._submit

    def hasty(self: Any, record: Any) -> None:
        submit(self, record)
        sizes = {"rows": record.planned_rows, "bytes": record.planned_bytes, "checksum": ""}
        how = {"worker": self.lane, "attempt": record.attempt, "limit": GradedLimit(), "pressure": 0.0}
        self.ledger.commit(record.plan_id, record.seq, **sizes, **how)

    patch.setattr(Hydrator, "_submit", hasty)


class _Whatever:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def _no_fence(patch: Patch) -> None:
    commit, recorded = MemorySink.commit, simulated.recorded

    def unfenced(step: Callable[..., Any], sink: Any, *args: Any) -> Any:
        sink.epoch = lambda plan_id: _Whatever()
        try:
            return step(sink, *args)
        finally:
            del sink.epoch

    patch.setattr(MemorySink, "commit", lambda self, *args: unfenced(commit, self, *args))
    patch.setattr(simulated, "recorded", lambda sink, spec: unfenced(recorded, sink, spec))


def _earlier_attempts_go_on(patch: Patch) -> None:
    patch.setattr(SimulatedSink, "end", lambda self, piece, below: 0)


def _frontier_past_a_hole(patch: Patch) -> None:
    patch.setattr(hydrating, "reopen_range", lambda figures, seq: figures)


def _nobody_settles(patch: Patch) -> None:
    patch.setattr(Hydrator, "recover", lambda self: None)
    patch.setattr(Hydrator, "reap_expired", lambda self: None)


def _cut_without_a_word(patch: Patch) -> None:
    patch.setattr(RangeSplitter, "_is_closed", lambda self, record, tried: True)


def _backups_are_not_looked_for(patch: Patch) -> None:
    patch.setattr(Planner, "reindex", lambda self, hydration, who, accept=False: None)


def _pause_binds_nobody(patch: Patch) -> None:
    patch.setattr(hydrating.Figures, "shut", property(lambda self: self.plan_id is None))


def _credits_are_not_counted(patch: Patch) -> None:
    admitted = admission.Request.admit
    patch.setattr(
        admission.Request, "admit", lambda self, record, **how: admitted(self, record, **{**how, "in_flight": 0})
    )


DOUBLED, READ_AGAIN, AHEAD = "in the sink twice", "was read again", "ledger ran ahead"
DIFFER, HANGS, CREDIT = "target and source differ", "does not come to its end", "credit is lost or made up"

MUTATIONS = (
    Mutation(name="the sink does not check the marker", apply=_sink_takes_doubles, noticed=(DOUBLED,)),
    Mutation(name="a task does not check the marker", apply=_task_reads_at_once, noticed=(READ_AGAIN,)),
    Mutation(name="a lane does not check the marker", apply=_lane_looks_for_no_marker, noticed=(HANGS,)),
    Mutation(
        name="the credit is returned on submit", apply=_credit_returned_on_submit, noticed=("over the credits", CREDIT)
    ),
    Mutation(name="the ledger is written before the sink", apply=_ledger_before_sink, noticed=(AHEAD,)),
    Mutation(name="the fence is not checked", apply=_no_fence, noticed=(DOUBLED, DIFFER)),
    Mutation(name="a retry does not end earlier attempts", apply=_earlier_attempts_go_on, noticed=(HANGS,)),
    Mutation(name="the frontier goes past a hole", apply=_frontier_past_a_hole, noticed=(HANGS,)),
    Mutation(name="nobody settles what a dead lane left", apply=_nobody_settles, noticed=(HANGS,)),
    Mutation(
        name="a range is cut without a word to the sink",
        apply=_cut_without_a_word,
        noticed=(DOUBLED, "revoked to committed"),
    ),
    Mutation(
        name="an older backup is not looked for",
        apply=_backups_are_not_looked_for,
        noticed=("was not named", "does not know plan"),
    ),
    Mutation(name="a pause binds nobody", apply=_pause_binds_nobody, noticed=("a person had paused",)),
    Mutation(
        name="credits are not counted at admission", apply=_credits_are_not_counted, noticed=("over the credits",)
    ),
)
