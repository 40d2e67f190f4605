"""Runs of a lane in this process, again and again as Airflow would try them."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace

from airflow_provider_backpressure.core.execution.lane_submission import Outcome
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.exceptions import Transient
from airflow_provider_backpressure.ledger.repository import SqlLedger
from airflow_provider_backpressure.runners.connect_runner import ConnectRunner
from tests.support.composed import Composed, difference
from tests.support.waiting import until

TRIES = 8
Session = Callable[[Composed], ConnectRunner]
"""Gives the way to Spark for a hydration."""


@dataclass(kw_only=True)
class Drained:
    """A planned hydration. ``direct``: its ledger as nobody's fault reaches it."""

    composed: Composed
    runner: ConnectRunner
    direct: str
    plan_id: str
    ranges: int
    errors: list[Transient] = field(default_factory=list)
    """What tries of the lane ended with."""

    def run(self) -> None:
        """Try until nothing is left."""
        until(self._done, timeout=240, pause=1.0, told=lambda: self.errors)

    def _done(self) -> bool:
        try:
            with self.composed.open(self.runner) as ports:
                return ports.hydrator().run().outcome is Outcome.DONE
        except Transient as error:
            self.errors.append(error)
            assert len(self.errors) < TRIES, self.errors
            return False

    def committed(self) -> int:
        """Count the ranges that the ledger has as committed."""
        with closing(SqlLedger(self.direct)) as ledger:
            return ledger.counts(self.plan_id).committed

    def in_flight(self) -> int:
        """Count the ranges that hold a credit."""
        with closing(SqlLedger(self.direct)) as ledger:
            return len(ledger.ranges(self.plan_id, states=[RangeState.ADMITTED]))

    def check(self) -> None:
        """Hold in the end: everything is there once, and each range is known in both places."""
        composed = self.composed
        assert difference(composed.source, composed.table, composed.sink, composed.target) == (0, 0)
        self.check_ranges()

    def check_ranges(self) -> None:
        """Hold in the end: of each range one marker, as the ledger has it, and no credit is out."""
        with replace(self.composed, ledger_url=self.direct).open(self.runner) as ports:
            records, found = ports.ledger.ranges(self.plan_id), ports.sink.markers(self.plan_id)
            gate = ports.ledger.gate(ports.hydration.id)
        committed = [record for record in records if record.state is RangeState.COMMITTED]
        cut = {record.slice_id for record in records if record.state is RangeState.REVOKED}
        assert len(committed) + len(cut) == len(records)
        markers = {slice_id: marker for slice_id, marker in found.items() if not marker.revoked}
        assert {record.slice_id: (record.rows, record.bytes, record.checksum) for record in committed} == {
            slice_id: (marker.rows + marker.quarantined, marker.bytes, marker.checksum)
            for slice_id, marker in markers.items()
        }, "ledger and markers differ"
        assert found.keys() - markers.keys() <= cut
        assert (gate.in_flight, gate.waiting) == (0, 0)


def planned(composed: Composed, runner: ConnectRunner, *, direct: str | None = None) -> Drained:
    """Plan."""
    with composed.open(runner) as ports:
        made = ports.planner().plan()
    return Drained(
        composed=composed,
        runner=runner,
        direct=direct or composed.ledger_url,
        plan_id=made.plan.plan_id,
        ranges=made.ranges,
    )
