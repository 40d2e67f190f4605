"""Any sequence of steps leaves the ledger on SQLite and the model of it with the same answers."""

import re
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from airflow_provider_backpressure.core.gate.credit_limits import GradedLimit
from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord
from airflow_provider_backpressure.exceptions import LedgerRefused
from airflow_provider_backpressure.ledger.migration import migrate
from airflow_provider_backpressure.ledger.repository import SqlLedger
from tests.conformance.ledger.support import admit, commit, make_plan, register
from tests.conformance.ledger.support import cut as cut_ranges
from tests.support.ledger_model import LedgerModel

RANGES = 5
NUMBERS = re.compile(r"Range \d+ is still \w+")
"""Which of several open ranges is named does not matter."""
SEQS = st.integers(0, RANGES - 1)
ATTEMPTS = st.integers(1, 3)
LANES = st.sampled_from(["a", "b"])


def essence(record: RangeRecord | None) -> object:
    """Return a range without the times, which two clocks give."""
    if record is None:
        return None
    return (
        record.plan_id,
        record.seq,
        record.state,
        record.attempt,
        record.lane,
        record.session_id,
        record.tag,
        record.memory_bytes,
        record.rows,
        record.error,
        record.lease_until is None,
    )


class TwoLedgers(RuleBasedStateMachine):
    """Does every step on both and compares what comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        url = f"sqlite:///{self.folder / 'ledger.db'}"
        migrate(url)
        self.ledgers: tuple[Ledger, Ledger] = (SqlLedger(url), LedgerModel())
        self.plans: list[str] = []

    def teardown(self) -> None:
        for ledger in self.ledgers:
            ledger.close()
        shutil.rmtree(self.folder)

    def both(self, step):
        """Return what both answer; an error counts as an answer."""
        answers = []
        for ledger, hydration_id in zip(self.ledgers, self.ids, strict=True):
            try:
                answers.append(step(ledger, hydration_id))
            except LedgerRefused as error:
                answers.append(NUMBERS.sub("N", str(error).replace(hydration_id, "H")))
        assert answers[0] == answers[1]
        return answers[0]

    @initialize(credits=st.integers(1, 3))
    def begin(self, credits):
        self.ids = [register(ledger, credits=credits) for ledger in self.ledgers]

    @rule(exact=st.booleans())
    def plan(self, exact):
        plan = make_plan(total=RANGES * 10, total_exact=exact)
        self.plans.append(plan.plan_id)
        self.both(lambda ledger, h: ledger.save_plan(h, plan, cut_ranges(RANGES)))

    @rule(lane=LANES, session=st.sampled_from(["", "spark"]), seq=st.none() | SEQS, memory=st.integers(0, 9))
    def admit(self, lane, session, seq, memory):
        def step(ledger, h):
            permit = admit(ledger, h, lane=lane, session_id=session, seq=seq, memory_bytes=memory)
            return essence(permit.range if permit else None)

        self.both(step)

    @rule(lane=LANES)
    def renew(self, lane):
        self.both(lambda ledger, h: ledger.renew(h, lane=lane, lease_seconds=60.0))

    @rule(
        data=st.data(),
        seq=SEQS,
        attempt=ATTEMPTS,
        lane=LANES,
        memory=st.none() | st.integers(1, 9),
        pressure=st.floats(0, 2),
    )
    def commit(self, data, seq, attempt, lane, memory, pressure):
        if self.plans:
            plan_id = data.draw(st.sampled_from(self.plans))
            values = {"worker": lane, "memory_bytes": memory, "limit": GradedLimit(), "pressure": pressure}
            self.both(lambda ledger, _: commit(ledger, plan_id, seq, attempt=attempt, **values))

    @rule(data=st.data(), seq=SEQS, attempt=ATTEMPTS, fail=st.booleans())
    def release(self, data, seq, attempt, fail):
        if self.plans:
            plan_id = data.draw(st.sampled_from(self.plans))
            self.both(lambda ledger, _: ledger.release(plan_id, seq, attempt=attempt, error="e", fail=fail))

    @rule(data=st.data())
    def retry(self, data):
        if self.plans:
            plan_id = data.draw(st.sampled_from(self.plans))
            self.both(lambda ledger, _: ledger.retry_failed(plan_id))

    @rule(lane=LANES, rows=st.integers(0, 20))
    def read(self, lane, rows):
        self.both(lambda ledger, h: ledger.record_read(h, worker=lane, in_flight_rows=rows))

    @rule(credits=st.integers(1, 4))
    def configure(self, credits):
        self.both(lambda ledger, h: register(ledger, credits=credits) == h)

    @rule()
    def pause(self):
        self.both(lambda ledger, h: ledger.pause(h, who="me", why="because"))

    @rule()
    def resume(self):
        self.both(lambda ledger, h: ledger.resume(h, who="me"))

    @rule(run=LANES, over=st.none() | LANES)
    def hold(self, run, over):
        self.both(lambda ledger, h: ledger.hold(h, run=run, over=over))

    @rule(run=LANES)
    def let_go(self, run):
        self.both(lambda ledger, h: ledger.let_go(h, run=run))

    @rule()
    def finish(self):
        self.both(lambda ledger, h: ledger.finish(h).phase)

    @invariant()
    def the_same_is_told(self):
        if not hasattr(self, "ids"):
            return

        def gate(ledger, h):
            state = ledger.gate(h)
            assert state.oldest_seconds is None or state.oldest_seconds >= 0
            return (
                state.phase,
                state.credits,
                state.in_flight,
                state.waiting,
                state.reserved_bytes,
                state.range_memory_bytes,
                state.paused_by,
                state.commit_seconds is None,
            )

        self.both(gate)
        self.both(lambda ledger, h: [essence(record) for record in ledger.find_abandoned(h, lane="a")])
        for plan_id in self.plans:
            self.both(lambda ledger, _, plan_id=plan_id: [essence(record) for record in ledger.ranges(plan_id)])
            self.both(lambda ledger, _, plan_id=plan_id: ledger.counts(plan_id))

        def statistics(ledger, h):
            return [
                (row.worker_id, row.snapshot_total, row.snapshot_total_exact, row.snapshot_progress, row.snapshot_read)
                for row in ledger.statistics(h)
            ]

        self.both(statistics)


TwoLedgers.TestCase.settings = settings(
    max_examples=20, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
test_two_ledgers = pytest.mark.timeout(300)(TwoLedgers.TestCase)
