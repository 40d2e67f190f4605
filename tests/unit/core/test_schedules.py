"""Thousands of schedules of lanes, Spark tasks, sink and ledger: whoever dies or sleeps, no range is lost or doubled.

A schedule is a string of bytes, each of which chooses what happens next; so one that fails shrinks to a short one.
"""

import random
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.simulation import Actor, Task, World, install, lost

LANES = ("a", "b")
FAIR_STEPS = 20_000
"""Steps within which a fair schedule has to come to the end."""


class Schedule:
    """A world with its bytes."""

    def __init__(self, choices: bytes) -> None:
        size = next(iter(choices), 0)
        self.world = World(ranges=2 + size % 3, credits=1 + size // 3 % 3)
        self.choices: Iterator[int] = iter(choices[1:])
        self.happened: Counter[str] = Counter()

    def play(self) -> None:
        """Do what the bytes say, check after each step, and go fairly to the end."""
        self.world.live("a")
        for choice in self.choices:
            self.act(choice)
            self.world.check()
        self.finish()

    def act(self, choice: int) -> None:
        """Most of the time somebody takes a step; else something befalls somebody."""
        world, (kind, which) = self.world, divmod(choice, 16)
        if kind < 9:
            self.step(which)
        elif kind == 9:
            world.clock.now += (1.0, 5.0, 30.0, 70.0)[which % 4]
        elif kind == 10 and which == 15:
            world.restart()
            self.happened["restart"] += 1
        elif kind == 10:
            world.live(LANES[which % 2])
        elif kind == 11:
            self.kill_lane(which)
        elif kind == 12:
            self.kill_task(which)
        elif kind == 13 and which % 2:
            world.driver_dies()
            self.happened["driver"] += 1
        elif kind == 13:
            self.give_up_task(which)
        elif kind == 14:
            link = (world.sink_link, world.ledger_link)[which % 2]
            link.down = not link.down
            for one in world.sink.connections if world.sink_link.down else ():
                one.ended = True
        else:
            (world.sink_link, world.ledger_link)[which % 2].lossy = True

    def step(self, which: int) -> None:
        """Let one of all take a step, or time go on where nobody can."""
        actors = self.world.actors()
        if actors:
            actors[which % len(actors)].step()
        else:
            self.world.live(LANES[which % 2])

    def kill_lane(self, which: int) -> None:
        """Kill a lane's process; its next life may begin at once or never."""
        every = [*self.world.lanes.values(), *self.world.zombies]
        living = [one for one in every if one.alive]
        if living:
            living[which % len(living)].kill()
            self.happened["lane"] += 1

    def kill_task(self, which: int) -> None:
        """Kill a task's process, a cancelled one or any; Spark runs it again, or tells the lane."""
        tasks = self.world.spark.tasks
        if not tasks:
            return
        task = tasks[which % len(tasks)]
        self.world.spark.die(task)
        self.happened["task"] += 1
        if which & 8 and not task.cancelled:
            self.world.spark.start(Task(spec=task.spec, future=task.future))
        else:
            task.tell(lost(task.spec.seq))

    def give_up_task(self, which: int) -> None:
        """Spark takes an executor for lost that is not, and runs its task again: twins of the same attempt."""
        tasks = [task for task in self.world.spark.tasks if task.future is not None]
        if tasks:
            task = tasks[which % len(tasks)]
            self.world.spark.start(Task(spec=task.spec, future=task.future))
            task.future = None
            self.happened["twin"] += 1

    def finish(self) -> None:
        """Leave every second of the old actors frozen, let the others and new lives go on, then thaw the frozen."""
        world = self.world
        for link in (world.sink_link, world.ledger_link):
            link.down = link.lossy = False
        old = [*world.lanes.values(), *world.zombies, *(task.actor for task in world.spark.tasks)]
        frozen = set(old[::2])
        for lane in LANES:
            world.live(lane)
        for _ in range(FAIR_STEPS):
            if self.complete():
                break
            self.round(frozen)
        else:
            raise AssertionError("the hydration does not come to its end")
        world.check_end()
        while any(actor.alive for actor in world.actors()):
            self.round(set())
        world.check_end()

    def complete(self) -> bool:
        """Whether everything is committed."""
        world = self.world
        return world.ledger.counts(world.planned.plan.plan_id).open == 0

    def round(self, frozen: set[Actor]) -> None:
        """Everybody but the frozen takes a step; who has ended lives again while something is open; time goes on."""
        world = self.world
        for actor in world.actors():
            if actor not in frozen and actor.alive:
                actor.step()
        if not self.complete():
            for lane in LANES:
                if not world.lanes[lane].alive:
                    world.live(lane)
        world.clock.now += 1.0


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch):
    """Play a schedule and return it."""
    current: list[Schedule] = []
    install(monkeypatch, lambda: current[-1].world)

    def play(choices: bytes) -> Schedule:
        current[:] = [Schedule(choices)]
        current[-1].play()
        return current[-1]

    return play


@pytest.mark.statement("X1", "X2", "T1")
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(choices=st.binary(max_size=150))
def test_no_schedule_loses_or_doubles_a_range(play, choices: bytes) -> None:
    """X1, X2, T1: searched for by hypothesis, which shrinks what it finds."""
    play(choices)


@pytest.mark.statement("X1", "X2", "T1")
def test_two_thousand_schedules_lose_and_double_nothing(play) -> None:
    """X1, X2, T1: by seed; they do contain what they are meant to."""
    happened: Counter[str] = Counter()
    for seed in range(2000):
        schedule = play(random.Random(seed).randbytes(100))
        happened += schedule.happened
        happened["read again"] += sum(times > 1 for times in schedule.world.reads.values())
    assert happened["restart"] > 100
    assert min(happened[name] for name in ("lane", "task", "twin", "driver", "read again")) > 300, happened
