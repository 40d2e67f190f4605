"""A random attacker: by a seed it changes the source, kills lanes and tasks, freezes attempts and restores the ledger.

A seed ends in one of two ways: the target holds what it must, or the product refused with an error of its own. Anything
else is a failure, which is told with everything that was done: ``ATTACK_SEEDS=17 pytest tests/chaos/test_attack.py``.
"""

import random
import shutil
import sqlite3
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_backpressure.core import failpoints
from airflow_provider_backpressure.core.config import NewColumn
from airflow_provider_backpressure.core.execution.lane_submission import Outcome
from airflow_provider_backpressure.core.failpoints import Step
from airflow_provider_backpressure.core.planning.catch_up_windows import check_caught_up
from airflow_provider_backpressure.core.planning.plan_result import Planned, Verdict
from airflow_provider_backpressure.core.planning.planner import Planner
from airflow_provider_backpressure.core.snapshot.spark_messages import RangeSpec
from airflow_provider_backpressure.core.verification.completeness_check import Completion
from airflow_provider_backpressure.core.verification.mismatch_report import mismatch_sentence
from airflow_provider_backpressure.core.verification.verifier import Verify
from airflow_provider_backpressure.exceptions import (
    BackpressureError,
    PlanOutdated,
    RangeFailed,
    SnapshotLost,
    Terminal,
    Transient,
    VerificationFailed,
    WorkerLost,
)
from tests.chaos.subjects.subject import Different, Subject
from tests.support.composed import Ports
from tests.support.local_runner import LocalRunner

LIVES = 10
"""Lives of a lane that are attacked; after them it is let alone."""
PATIENCE = 6
"""Lives that a lane may need when nobody attacks it any more."""
RUNS = 3
"""Runs within which a source that stands still has to be hydrated; its log goes on, for others write to it too."""
SECONDS = 180.0
"""After which a seed hangs."""
FROZEN_SECONDS = 30.0
IN_TASK = (Step.IN_COPY, Step.BEFORE_SINK_COMMIT, Step.AFTER_SINK_COMMIT)


class Killed(BaseException):
    """The lane's process is gone, as by SIGKILL: nothing catches it."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a seed ended. ``outcome``: ``equal``, ``refused``, or ``failed``."""

    system: str
    seed: int
    outcome: str
    said: str
    actions: tuple[str, ...]

    def __str__(self) -> str:
        """Return it for a person: how to see it again, and what was done."""
        done = "\n".join(f"  {number:3} {action}" for number, action in enumerate(self.actions))
        return f"{self.system} seed {self.seed}: {self.outcome}: {self.said}\n{done}"


@dataclass(frozen=True, kw_only=True)
class Temper:
    """How often a seed does what, each as a chance at every step of a range."""

    change: float
    define: float
    """Of a change: that it changes the definition of what is read rather than rows."""
    kill: float
    fail: float
    freeze: float
    restore: float
    """Between two lives."""

    @classmethod
    def drawn(cls, draw: random.Random) -> "Temper":
        """Return one of many tempers; most leave something out, lest every seed ends in a refusal."""
        return cls(
            change=draw.choice((0.0, 0.05, 0.15, 0.3)),
            define=draw.choice((0.0, 0.0, 0.05, 0.2, 0.5)),
            kill=draw.choice((0.0, 0.0, 0.02, 0.06)),
            fail=draw.choice((0.0, 0.0, 0.03, 0.1)),
            freeze=draw.choice((0.0, 0.0, 0.05, 0.15)),
            restore=draw.choice((0.0, 0.0, 0.0, 0.4)),
        )


@dataclass(kw_only=True)
class Attack:
    """One seed against one subject."""

    seed: int
    subject: Subject
    folder: Path
    ledger: Path
    """A migrated ledger with nothing in it."""
    actions: list[str] = field(default_factory=list)
    _still: bool = False
    _thawed: threading.Event = field(default_factory=threading.Event)
    _frozen: set[str] = field(default_factory=set)
    _at_commit: threading.Event = field(default_factory=threading.Event)
    _copies: list[Path] = field(default_factory=list)
    _lock: Any = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        """Draw what does not change any more."""
        self._draw = self.subject.draw
        self._temper = Temper.drawn(self._draw)
        self._file = self.folder / f"ledger{self.seed}.db"
        shutil.copy(self.ledger, self._file)
        self._policy = self._draw.choice((NewColumn.STOP, NewColumn.ADD))

    def run(self) -> Result:
        """Attack, in a thread that may hang; return how it ended."""
        found: list[Result] = []
        thread = threading.Thread(target=lambda: found.append(self._ended()), daemon=True)
        thread.start()
        thread.join(SECONDS)
        return found[0] if found else self._result("failed", f"it hangs, for {SECONDS:g} s by now")

    def _ended(self) -> Result:
        try:
            self._play()
        except Different as difference:
            return self._result("failed", f"DIFFERENT {difference}")
        except BackpressureError as error:
            root = _root(error)
            outcome = "refused" if isinstance(root, BackpressureError) else "failed"
            told = "" if outcome == "refused" else f" by {type(root).__name__}: {root}"
            return self._result(outcome, f"{type(error).__name__}: {error}{told}")
        except BaseException as error:  # noqa: BLE001 - whatever it is, the seed has found it
            return self._result("failed", "".join(traceback.format_exception(error)))
        return self._result("equal", "")

    def _result(self, outcome: str, said: str) -> Result:
        return Result(
            system=self.subject.system, seed=self.seed, outcome=outcome, said=said, actions=tuple(self.actions)
        )

    def _play(self) -> None:
        composed = replace(self.subject.composed(), ledger_url=f"sqlite:///{self._file}")
        self._note(
            f"{composed.mode}, {composed.consistency}, {composed.budget.range_rows} rows a range, {self._temper}"
        )
        self.actions.extend(self.subject.history)
        runner = LocalRunner(logins={name: getattr(composed, name) for name in ("source", "sink")})
        runner.on_submit = self._submitted
        self._composed, self._runner = composed, runner
        try:
            with _reached(self._reach):
                for number in range(self._draw.choice((1, 1, 2))):
                    for _ in range(self._draw.randint(0, 3)):
                        self._change()
                    self._run(restart=number > 0 and self.subject.restarts and self._chance(0.7))
                self._settle()
        finally:
            self._thawed.set()
            runner.close()

    def _settle(self) -> None:
        """Let the source stand still, and run until nothing is left to do."""
        self._still = True
        self._thawed.set()
        self._note("from here on the source stands still")
        for number in range(RUNS):
            verdict = self._run(restart=number == 0 and self.subject.restarts)
            if verdict in (Verdict.UNCHANGED, Verdict.MOVED):
                break
        self.subject.check_settled(self._plan_id)

    def _run(self, *, restart: bool) -> Verdict:
        """Run once as the DAG would; where that is refused, perhaps once more as the error advises."""
        try:
            return self._tried(restart=restart)
        except Terminal as error:
            self._note(f"refused: {type(error).__name__}: {error}")
            if restart or self.subject.system == "kafka" or not self._chance(0.5):
                raise
            self._note("restart, since it was refused")
            return self._tried(restart=True)

    def _tried(self, *, restart: bool) -> Verdict:
        if restart and (done := self.subject.empty_target()):
            self._note(done)
        verdict = self._planned(restart=restart).verdict
        self._drain()
        self._finish()
        return verdict

    def _planned(self, *, restart: bool = False) -> Planned:
        for left in reversed(range(PATIENCE)):
            try:
                with self._ports() as ports:
                    planned = self._planner(ports).plan(restart=restart)
                    break
            except Transient as error:
                self._note(f"plan: {type(error).__name__}: {error}")
                if not left:
                    raise
        self._plan_id = planned.plan.plan_id
        self._note(f"plan: {planned.verdict}, {planned.ranges} ranges, {planned.note[:100]}")
        if planned.verdict is Verdict.PLANNED:
            self.subject.capture(self._plan_id)
        return planned

    def _planner(self, ports: Ports) -> Planner:
        return replace(ports.planner(), on_new_column=self._policy)

    def _drain(self) -> None:
        """Let lanes live until nothing is left."""
        for life in range(LIVES + PATIENCE):
            quiet = self._still
            self._still = quiet or life >= LIVES
            try:
                if self._live():
                    return
            except Killed:
                self._note("the lane is dead")
            except SnapshotLost as error:
                if isinstance(error, PlanOutdated) or not self._survives():
                    self._note(f"the plan is closed: {error}")
                    with suppress(Transient):
                        self._close()
                else:
                    self._note(f"another snapshot continues: {error}")
            except VerificationFailed:
                raise
            except Transient as error:
                self._note(f"the lane ended: {type(error).__name__}: {error}")
                if life == LIVES + PATIENCE - 1:
                    raise
            finally:
                self._still = quiet
            if not self._still:
                self._between_lives()
        raise Different("the lanes come to no end")

    def _between_lives(self) -> None:
        if self._chance(0.3):
            self._thaw()
        if self._copies and self._chance(self._temper.restore):
            self._restore()
        if self._chance(0.3) or not self._known():
            self._planned()

    def _survives(self) -> bool:
        with self._ports() as ports:
            return ports.plan.survives

    def _close(self) -> None:
        with self._ports() as ports:
            self._plan_id = self._planner(ports).close(ports.hydration, ports.plan).plan.plan_id
            self.subject.capture(self._plan_id)

    def _live(self) -> bool:
        with self._ports() as ports:
            # As the lane's task does: the ledger may have been restored, or its plan not be in the target yet.
            self._planner(ports).reindex(ports.hydration, who="test", within_plan=True)
            if not ports.plan.epoch:
                self._planner(ports).take_target(ports.hydration, ports.plan)
            while True:
                hydrator = ports.hydrator()
                hydrator.inline_wait = 1.0
                done = hydrator.run().outcome is Outcome.DONE
                if not done or not self._planner(ports).follow():
                    self._plan_id = ports.plan.plan_id
                    return done

    def _finish(self) -> None:
        """Do what the task does that verifies."""
        with self._ports() as ports:
            plan, how = ports.plan, Verify.NONE if self._draw.random() < 0.2 else Verify.TARGET
            Completion(plan=plan, ledger=ports.ledger, sink=ports.sink).check()
            check_caught_up(plan, ports.sink)
            ports.sink.complete(plan)
            if how is not Verify.NONE:
                report = ports.verifier().verify(ports.ledger.ranges(plan.plan_id), how)
                if not report.equal:
                    raise VerificationFailed(mismatch_sentence(report))
            ports.sink.publish(plan)
            ports.ledger.finish(ports.hydration.id)
        self._note(f"finished, verify={how}")
        self._plan_id = plan.plan_id
        self.subject.check_finished(plan)
        if not self._still:
            self._copy()
            if self._chance(self._temper.restore):
                self._restore()

    def _known(self) -> bool:
        with self._ports() as ports:
            names = {"source_identity": ports.source.identity, "sink_identity": ports.sink.identity}
            found = ports.ledger.find(environment="default", **names)
            return found is not None and found.plan is not None

    @contextmanager
    def _ports(self) -> Iterator[Ports]:
        with self._composed.open(self._runner) as ports:
            yield replace(ports, source=_Observed(ports.source, lambda plan: self.subject.capture(plan.plan_id)))

    def _reach(self, step: Step, tag: str) -> None:
        """Do at a step of a range what the seed wants."""
        with self._lock:
            if tag in self._frozen and step is Step.BEFORE_SINK_COMMIT:
                self._frozen.discard(tag)
                waits = True
            else:
                waits = False
                self._strike(step)
        if waits:
            self._at_commit.set()
            self._thawed.wait(FROZEN_SECONDS)

    def _strike(self, step: Step) -> None:
        if self._still:
            return
        if step is Step.AFTER_LEDGER_COMMIT and self._chance(0.2):
            self._copy()
        if self._chance(self._temper.change):
            self._change(step)
        if step in IN_TASK and self._chance(self._temper.fail):
            self._note(f"{step}: the task ends")
            raise WorkerLost("The process of the task ended without a word.")
        if step not in IN_TASK and self._chance(self._temper.kill):
            self._note(f"{step}: the lane is killed")
            raise Killed

    def _submitted(self, spec: RangeSpec, future: "Future[Any]") -> None:
        """Perhaps freeze the attempt before its commit, and kill its lane meanwhile."""
        if self._still or not self._chance(self._temper.freeze):
            return
        self._thawed.clear()
        self._at_commit.clear()
        with self._lock:
            self._frozen.add(spec.tag)
        while not self._at_commit.wait(0.01) and not future.done():
            pass
        self._frozen.discard(spec.tag)
        if self._at_commit.is_set():
            self._note(f"{spec.tag} is frozen before its commit, and its lane is killed")
            raise Killed

    def _thaw(self) -> None:
        if not self._thawed.is_set():
            self._note("who was frozen goes on")
            self._thawed.set()

    def _change(self, step: Step | None = None) -> None:
        define = self._draw.random() < self._temper.define
        done = self.subject.change(define=define, between=step is None)
        if done:
            self._note(f"{step or 'between'}: {done}")

    def _copy(self) -> None:
        """Keep the ledger as it is now."""
        path = self._file.with_suffix(f".{len(self._copies)}")
        with closing(sqlite3.connect(self._file)) as live, closing(sqlite3.connect(path)) as copy:
            live.backup(copy)
        self._copies.append(path)

    def _restore(self) -> None:
        number = self._draw.randrange(len(self._copies))
        self._note(f"the ledger is restored to copy {number} of {len(self._copies)}")
        with closing(sqlite3.connect(self._copies[number])) as copy, closing(sqlite3.connect(self._file)) as live:
            copy.backup(live)
        if not self._known():
            self._planned()

    def _chance(self, share: float) -> bool:
        with self._lock:
            return self._draw.random() < share

    def _note(self, text: str) -> None:
        self.actions.append(text)


class _Observed:
    """A source that tells when a snapshot was taken."""

    def __init__(self, source: Any, taken: Callable[[Any], None]) -> None:
        self._source, self._taken = source, taken

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def keep(self, plan: Any) -> Any:
        """Keep it, and tell."""
        keeper = self._source.keep(plan)
        self._taken(plan)
        return keeper


@contextmanager
def _reached(hook: Callable[[Step, str], None]) -> Iterator[None]:
    """Let a function of ours stand for the failpoints of this process, in every module that has them."""

    plain = failpoints.reach
    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if name.startswith("airflow_provider_backpressure.") and getattr(module, "reach", None) is plain:
                patch.setattr(module, "reach", hook)
        yield


def _root(error: BaseException) -> BaseException:
    """Return what a range failed of in the end, where the product did not name it itself."""
    while isinstance(error, RangeFailed) and error.__cause__ is not None:
        error = error.__cause__
    return error
