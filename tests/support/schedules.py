"""Schedules of the simulation: what happens next, one move after another, as a seed or a search has it.

A schedule that fails is made as short as it goes and printed; its line can be played again by :func:`replay`.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from airflow_provider_backpressure.core.failpoints import Step
from airflow_provider_backpressure.core.gate.cluster_queue import AS_DECLARED, Change
from airflow_provider_backpressure.exceptions import OutOfMemory
from tests.chaos.matrix import Victim
from tests.support.actors import Actor
from tests.support.scripts import Script
from tests.support.shrinking import shrunk
from tests.support.simulated import lost
from tests.support.simulation import World, stage

LANES = ("a", "b")
AWAY = 20.0
"""Seconds for which a database that was killed is down."""
FAIR_STEPS = 1_500
"""Rounds within which a fair schedule has to come to the end."""


@dataclass(kw_only=True)
class Schedule:
    """A script at play."""

    script: Script
    world: World = field(init=False)
    happened: Counter[str] = field(default_factory=Counter)
    said: list[str] = field(default_factory=list)
    """What happened, for people."""
    _strike: tuple[Victim, Step, int] | None = None
    """Who is killed at which pass of which step."""
    _passes: int = 0
    _caught: str | None = None
    """The attempt at which the victim is caught."""
    _back_at: float | None = None

    def __post_init__(self) -> None:
        """Begin."""
        self.world = World(ranges=self.script.ranges, credits=self.script.credits)
        self.world.on_reach = self._reached

    def play(self) -> None:
        """Do what the script says, check after each move, and go fairly to the end."""
        if self.script.planned:
            self.world.plan_at_once()
        self.world.live(LANES[0])
        for name, which in self.script.moves:
            self.act(name, which)
            self.world.check()
        self.finish()

    def act(self, name: str, which: int) -> None:
        """Let somebody take a step, or something befall somebody."""
        if name.startswith("strike"):
            _, victim, step = name.split()
            self._strike = (Victim(victim), Step(step), which)
            return
        told = getattr(self, f"_{name.replace(' ', '_')}")(which)
        if told is not None:
            self.happened[name] += 1
            self.said.append(told)

    def _step(self, which: int) -> str | None:
        actors = self.world.actors()
        if not actors:
            return self._live(which)
        actor = actors[which % len(actors)]
        before = actor.at
        self._let(actor)
        return f"{actor.name}: {before} -> {actor.at}"

    def _let(self, actor: Actor) -> None:
        """Let an actor take a step, and strike where it came to the place for that."""
        actor.step()
        if self._caught is not None:
            assert self._strike is not None
            (victim, step, number), tag = self._strike, self._caught
            self.said.append(f"the {victim} is killed at pass {number} of {step}, {tag}")
            self.happened["strike"] += 1
            self._kill(victim, actor, tag)
            self._strike = self._caught = None

    def _reached(self, step: Step, tag: str) -> None:
        if self._strike is not None and step is self._strike[1]:
            self._passes += 1
            if self._passes == self._strike[2]:
                self._caught = tag

    def _kill(self, victim: Victim, actor: Actor, tag: str) -> None:
        """Kill who is meant. ``actor``: who stands at the step."""
        world, spark = self.world, self.world.spark
        standing = [task for task in spark.tasks if task.actor is actor]
        if victim is Victim.LANE:
            self._lane_of(tag).kill() if standing else actor.kill()
        elif victim is Victim.WORKER:
            for task in standing:
                spark.die(task)
                spark.again(task)
        elif victim is Victim.EXECUTOR:
            for task in list(spark.tasks):
                spark.die(task)
                spark.again(task)
        elif victim is Victim.DRIVER:
            world.driver_dies()
            for task in list(spark.tasks):
                spark.die(task)
        else:
            (world.sink_link if victim is Victim.SINK else world.ledger_link).down = True
            if victim is Victim.SINK:
                world.sink.end_all()
            self._back_at = world.clock.now + AWAY

    def _lane_of(self, tag: str) -> Actor:
        """Return the lane that has submitted an attempt; any one where its range was given back meanwhile."""
        owner = next((record.lane for record in self.world.records if record.tag == tag), None)
        return self.world.lanes[owner or min(self.world.lanes)]

    def _time(self, which: int) -> str:
        seconds = (1.0, 5.0, 30.0, 70.0)[which % 4]
        self.world.clock.now += seconds
        return f"{seconds:g} s go by"

    def _live(self, which: int) -> str:
        self.world.live(LANES[which % 2])
        return f"lane {LANES[which % 2]} begins a life"

    def _restart(self, which: int) -> str | None:
        if self.world.must_plan:
            return None
        self.world.restart()
        return "a person empties the target and restarts"

    def _kill_lane(self, which: int) -> str | None:
        """Kill a lane's process; its next life may begin at once or never."""
        living = [one for one in (*self.world.lanes.values(), *self.world.zombies) if one.alive]
        return self._killed(living[which % len(living)]) if living else None

    def _kill_planner(self, which: int) -> str | None:
        planner = self.world.planning
        return self._killed(planner) if planner is not None and planner.alive else None

    def _killed(self, actor: Actor) -> str:
        actor.kill()
        return f"{actor.name} is killed at {actor.at}"

    def _end_lane(self, which: int) -> str | None:
        """Airflow tells a lane's task to end, as when a person clears it."""
        lane = LANES[which % 2]
        if lane not in self.world.lanes or not self.world.lanes[lane].alive:
            return None
        self.world.clocks[lane].over = True
        return f"lane {lane} is told to end"

    def _kill_task(self, which: int) -> str | None:
        """Kill a task's process, a cancelled one or any; Spark runs it again, or tells the lane."""
        spark = self.world.spark
        if not spark.tasks:
            return None
        task = spark.tasks[which % len(spark.tasks)]
        again = bool(which & 8) and not task.cancelled
        spark.die(task)
        if again:
            spark.again(task)
        else:
            task.tell(lost(task.spec.seq))
        return f"task {task.name} is killed at {task.actor.at}" + (", and run again" if again else "")

    def _twin(self, which: int) -> str | None:
        """Spark takes an executor for lost that is not, and runs its task again: twins of the same attempt."""
        tasks = [task for task in self.world.spark.tasks if task.future is not None]
        if not tasks:
            return None
        task = tasks[which % len(tasks)]
        self.world.spark.again(task)
        return f"task {task.name} is run a second time beside the first"

    def _driver(self, which: int) -> str | None:
        if which % 2:
            return None
        self.world.driver_dies()
        return "the driver is killed; its tasks go on"

    def _memory(self, which: int) -> str | None:
        """An executor's memory runs out."""
        spark = self.world.spark
        tasks = [task for task in spark.tasks if task.future is not None and not task.cancelled]
        if not tasks:
            return None
        task = tasks[which % len(tasks)]
        spark.die(task)
        task.tell(OutOfMemory("It took too much."))
        return f"task {task.name} takes too much memory"

    def _sink(self, which: int) -> str:
        link = self.world.sink_link
        link.down = not link.down and which < 8
        if link.down:
            self.world.sink.end_all()
        return f"the sink is {'down' if link.down else 'up'}"

    def _ledger(self, which: int) -> str:
        link = self.world.ledger_link
        link.down = not link.down and which < 8
        return f"the ledger is {'down' if link.down else 'up'}"

    def _lose_answer_of_sink(self, which: int) -> str:
        self.world.sink_link.lossy = True
        return "the sink's next answer will be lost"

    def _lose_answer_of_ledger(self, which: int) -> str:
        self.world.ledger_link.lossy = True
        return "the ledger's next answer will be lost"

    def _pause(self, which: int) -> str | None:
        found = self.world.ledger.entry
        if found is None:
            return None
        if found.figures.paused_by:
            self.world.ledger.resume(found.figures.id, who="a person")
            return "a person resumes"
        self.world.ledger.pause(found.figures.id, who="a person")
        return "a person pauses"

    def _credits(self, which: int) -> str | None:
        found, credits = self.world.hydration_id, which % 5
        if found is None:
            return None
        self.world.ledger.steer(found, Change(credits=credits or AS_DECLARED), who="a person")
        return f"a person sets {credits or 'the declared'} credits"

    def _smaller_ranges(self, which: int) -> str | None:
        found, rows = self.world.hydration_id, which % 3
        if found is None:
            return None
        self.world.ledger.steer(found, Change(range_rows=rows or AS_DECLARED), who="a person")
        return f"a person sets {rows or 'the declared'} rows a range"

    def _clock(self, which: int) -> str:
        """The ledger's clock is set, as by somebody who corrects it."""
        jump = (3600.0, -3600.0, 90.0, -90.0)[which % 4]
        self.world.clock.skew += jump
        return f"the clock jumps by {jump:g} s"

    def _back_up(self, which: int) -> str:
        world = self.world
        if which % 2:
            world.ledger_backup = world.ledger.back_up(world.clock)
            return "the ledger is backed up"
        world.sink_backup = world.sink.back_up()
        return "the sink is backed up"

    def _restore_ledger(self, which: int) -> str:
        self.world.restore_ledger()
        return "the ledger's backup is put back"

    def _restore_sink(self, which: int) -> str:
        self.world.restore_sink()
        return "the sink's backup is put back"

    # The end

    def finish(self) -> None:
        """Mend everything, leave every second of the old actors frozen, let the others go on, then thaw the frozen."""
        world = self.world
        self._mend()
        old = [one for one in world.actors() if one is not world.planning]
        frozen = set(old[::2])
        self.said.append(f"all is mended; frozen are: {', '.join(one.name for one in frozen) or 'none'}")
        for lane in LANES:
            world.live(lane)
        for number in range(FAIR_STEPS):
            if world.complete:
                break
            self.round(frozen, number)
        else:
            raise AssertionError("the hydration does not come to its end")
        world.check_end()
        while any(actor.alive for actor in world.actors()):
            self.round(set(), 0)
        world.check_end()

    def _mend(self) -> None:
        world, found, self._back_at = self.world, self.world.ledger.entry, None
        for link in (world.sink_link, world.ledger_link):
            link.down = link.lossy = False
        if found is not None and found.figures.paused_by:
            world.ledger.resume(found.figures.id, who="a person")

    def round(self, frozen: set[Actor], number: int) -> None:
        """Everybody but the frozen takes a step; who has ended lives again while something is open; time goes on."""
        world = self.world
        for actor in world.actors():
            if actor not in frozen and actor.alive:
                self._let(actor)
        if self._back_at is not None and world.clock.now >= self._back_at:
            self._mend()
        if not world.complete:
            for lane in LANES:
                if lane not in world.lanes or not world.lanes[lane].alive:
                    world.live(lane)
        # Faster where it takes long: some wait for a lease that a clock has made an hour longer.
        world.clock.now += 1.0 if number < 500 else 10.0


def broken(script: Script) -> str | None:
    """Play a script; return which invariant it breaks, if any. Any other error is one too."""
    try:
        Schedule(script=script).play()
    except Exception as error:  # noqa: BLE001 - whatever a schedule brings about is what is looked for
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


def played(script: Script) -> Schedule:
    """Play a script to its end; ``AssertionError`` with the shortest one that fails where it breaks something."""
    schedule = Schedule(script=script)
    try:
        schedule.play()
    except Exception as error:
        raise AssertionError(f"the shortest: {account(shortest(script))}") from error
    return schedule


def shortest(script: Script, fails: Callable[[Script], object] = broken, *, seconds: float = 60.0) -> Script:
    """Return a script that still fails, with as few and as simple moves as it goes in the time."""
    for ranges, credits, planned in ((1, 1, 1), (2, 1, 1), (2, 2, 1), (3, 2, 1), (1, 1, 0), (2, 2, 0)):
        smaller = replace(
            script,
            ranges=min(ranges, script.ranges),
            credits=min(credits, script.credits),
            planned=max(planned, script.planned),
        )
        if fails(smaller):
            script = smaller
            break
    moves = shrunk(
        script.moves,
        lambda moves: fails(replace(script, moves=tuple(moves))),
        simpler=lambda move: ((move[0], which) for which in range(move[1])),
        seconds=seconds,
    )
    return replace(script, moves=tuple(moves))


def account(script: Script) -> str:
    """Return what a failing schedule did, move by move, and how it is played again."""
    schedule = Schedule(script=script)
    try:
        schedule.play()
    except Exception as error:  # noqa: BLE001 - see broken
        what = f"{type(error).__name__}: {error}".splitlines()[0]
    else:
        what = "nothing is broken"
    lines = "\n".join(f"  {number:3} {line}" for number, line in enumerate(schedule.said, 1))
    return f"{what}\n{lines}\nplay it again: replay({str(script)!r})"


def replay(text: str) -> str:
    """Play what was printed, and return what happens."""
    with stage():
        return account(Script.parse(text))
