"""What is drawn: the pipe of one hydration, the table of several, the lines of a log; on every kind of screen."""

import io
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from airflow_provider_backpressure.cli.render.hydration_panel import render_hydration
from airflow_provider_backpressure.cli.render.overview import format_log_line, overview
from airflow_provider_backpressure.cli.render.status_values import Facts
from airflow_provider_backpressure.cli.render.symbols import ASCII, UNICODE
from airflow_provider_backpressure.core.gate.hydration_record import Phase
from airflow_provider_backpressure.core.gate.signals import MemoryReading
from airflow_provider_backpressure.core.progress.pipeline_view import amount, compact, pipe
from airflow_provider_backpressure.core.progress.summary import HydrationSummary
from airflow_provider_backpressure.core.snapshot.spark_messages import Transform
from airflow_provider_backpressure.core.stage_metrics import Flow, Stage, StageTime
from airflow_provider_backpressure.operators import PlanSnapshotOperator
from tests.support.world import World, context
from tests.unit.cli.test_commands import seen

HELD = {
    Stage.ADMIT: StageTime(backpressured=90, busy=5, idle=5),
    Stage.READ: StageTime(backpressured=60, busy=30, idle=10),
    Stage.SINK: StageTime(busy=95, idle=5),
}
"""F6's picture: everything waits for the sink."""


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """A hydration that is held back by its sink, and paused too."""
    made = World()
    made.install(monkeypatch)
    PlanSnapshotOperator(task_id="plan_snapshot", **made.flow).execute(context())
    for step in range(5):
        seen(made, known=1000 * step, committed=100 * step, seconds=10 * step)
    reading = MemoryReading(used_bytes=600 * 2**20, limit_bytes=1000 * 2**20, age_seconds=0)
    made.ledger.record_memory(made.hydration.id, reading)
    made.ledger.record_flow(made.hydration.id, worker="a", times=HELD)
    for _ in range(2):
        made.ledger.admit(made.hydration.id, lane="lane", session_id="s", lease_seconds=60)
    made.ledger.pause(made.hydration.id, who="ada", why="release night")
    return made


class Screen(io.StringIO):
    """Where it is drawn, with an encoding."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self.code = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Of the screen."""
        return self.code


def glance(world: World) -> HydrationSummary:
    """Return how the hydration stands."""
    (now,) = world.ledger.glances(limit=2)
    return now


def drawn(world: World, *, width: int = 80, encoding: str = "utf-8", now: HydrationSummary | None = None) -> list[str]:
    """Return the picture's lines."""
    console = Console(file=Screen(encoding), width=width)
    console.print(render_hydration(Facts.read(world.ledger, now or glance(world)), console))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.statement("F8", "M6", "M12")
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_the_pipe_is_drawn_with_rates_and_credits(world: World, encoding: str):
    """F8: source(rate, lag) -> gate with its credits -> read -> sink(rate), in 80 columns, without any colour."""
    lines = drawn(world, encoding=encoding)
    assert max(cell_len(line) for line in lines) <= 80
    text = "\n".join(lines)
    assert "\x1b" not in text
    text.encode(encoding)
    top = next(line for line in lines if "source" in line and "sink" in line)
    assert [top.index(name) for name in ("source", "gate", "read", "sink")] == sorted(
        top.index(name) for name in ("source", "gate", "read", "sink")
    )
    boxes = lines[lines.index(top) : lines.index(top) + 5]
    for figure in ("100 offsets/s", "lag 3,600", "2 of 3", "closed", "30% busy", "60% held back", "0 rows/s"):
        assert any(figure in line for line in boxes), figure
    with_marks = ASCII if encoding == "ascii" else UNICODE
    assert any(with_marks.taken * 2 + with_marks.free in line for line in boxes), "two credits taken, one free"
    assert any(line.count(with_marks.arrow) == 3 for line in boxes)
    assert "closed: paused by ada: release night" in text
    assert "sink is the bottleneck" in text
    assert f"memory   [{with_marks.full * 14}{with_marks.rest * 10}]  60.0 %" in text


def test_a_narrow_screen_gets_the_pipe_one_below_the_other(world: World):
    lines = drawn(world, width=50)
    assert max(cell_len(line) for line in lines) <= 50
    assert any(line.startswith("source") and "100 offsets/s, lag 3,600" in line for line in lines)
    assert any(line.startswith("sink") and "0 rows/s, 95% busy" in line for line in lines)


def test_what_nobody_knows_is_called_so(world: World):
    """Not 0: neither rates nor lag nor shares; and nothing is said of a gate at rest."""
    now = replace(glance(world), course=None, flow={}, speed=None)
    told = pipe(now)
    assert (told.source.figure, told.source.note) == ("rate unknown", "lag unknown")
    assert (told.read.figure, told.sink.figure) == ("not known yet", "rate unknown")
    settled = replace(now, hydration=replace(now.hydration, phase=Phase.STEADY_STATE))
    assert {part.figure for part in pipe(settled).parts[2:]} == {"at rest"}
    assert not any(line.startswith("gate ") for line in drawn(world, now=settled))


TRANSFORMED = {
    Stage.ADMIT: StageTime(backpressured=90, busy=5, idle=5),
    Stage.READ: StageTime(backpressured=99.9, busy=0.1),
    Stage.TRANSFORM: StageTime(busy=94, idle=6),
    Stage.SINK: StageTime(busy=5, idle=95),
}
"""Everything waits for the transform."""


def transformed(world: World, flow: Flow) -> HydrationSummary:
    """Return how the hydration stands, with a transform in its plan."""
    now, plan = glance(world), replace(world.plan, transform=Transform(sql="SELECT 1"))
    return replace(now, hydration=replace(now.hydration, plan=plan), flow=flow)


@pytest.mark.statement("F8")
@pytest.mark.parametrize(("width", "arrows"), [(80, "▶"), (120, "─▶")])
def test_a_transform_that_an_earlier_release_timed_has_a_part_of_its_own(world: World, width: int, arrows: str):
    """F8: source -> gate -> read -> transform -> sink, in eighty columns too; a slow transform is the bottleneck."""
    lines = drawn(world, now=transformed(world, TRANSFORMED), width=width)
    assert max(cell_len(line) for line in lines) <= width
    top = next(line for line in lines if "source" in line and "sink" in line)
    names = ["source", "gate", "read", "transform", "sink"]
    assert [name for name in top.replace("─", " ").replace("━", " ").split() if name in names] == names
    boxes = lines[lines.index(top) : lines.index(top) + 5]
    assert len({cell_len(line.rstrip()) for line in boxes}) == 1, "nothing is broken into two lines"
    assert set(boxes[-1].split()[0]) <= set("└─┘"), "nor is any box higher"
    for figure in ("100 offsets/s", "lag 3,600", "2 of 3", "0% busy", "100% held", "94% busy", "0 rows/s"):
        assert any(figure in line for line in boxes), figure
    assert any(line.count(arrows) == 4 for line in boxes)
    assert "transform is the bottleneck" in "\n".join(lines)


def test_parts_of_a_transform_before_anything_is_known(world: World):
    """One part that says so, for both."""
    told = pipe(transformed(world, {}))
    assert [part.name for part in told.parts] == ["source", "gate", "read+transform", "sink"]
    assert told.read.figure == "not known yet"
    assert any("not known yet" in line for line in drawn(world, now=transformed(world, {})))


@pytest.mark.parametrize("stage", [Stage.READ_AND_TRANSFORM, Stage.READ])
def test_reading_and_transform_are_one(world: World, stage: Stage):
    """Also in the figures of a release that recorded both as read."""
    flow = {Stage.ADMIT: HELD[Stage.ADMIT], stage: StageTime(busy=9, idle=1), Stage.SINK: StageTime(idle=1)}
    told = pipe(transformed(world, flow))
    assert [part.name for part in told.parts] == ["source", "gate", "read+transform", "sink"]
    assert told.bottleneck is told.read
    assert "90% busy" in told.read.figure


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_several_are_a_line_each(world: World, encoding: str):
    """M12 for many: source, target, DAG, state and how much is done; below, what the state leaves open."""
    now = glance(world)
    topic = replace(
        now.hydration, source_identity="kafka://broker:9092/o", sink_identity="postgres://dwh:5432/dwh/raw.o"
    )
    hydration = replace(now.hydration, sink_identity="postgres://dwh:5432/dwh/raw." + "long" * 20)
    console = Console(file=Screen(encoding), width=100)
    console.print(overview([replace(now, hydration=topic), replace(now, hydration=hydration, failed=3)], console))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(cell_len(line) for line in lines) <= 100
    assert [line[:8].strip() for line in lines] == ["ID", world.hydration.id[:8], "", world.hydration.id[:8], ""]
    assert lines[1].split()[1:] == ["o", "(kafka)", "raw.o", "dag", "paused", "0.0", "%"]
    assert lines[2].strip() == "by ada: release night; 2 in flight; does not keep up with its source"
    assert lines[3].split()[3].endswith("longlong")
    assert "3 ranges failed" in lines[4]


@pytest.mark.statement("C4")
def test_an_error_in_the_list_is_whole(world: World):
    """Its end says what to do."""
    failure = (
        "Rows cannot go into raw.t: " + "column a arrives as bigint and is integer in the table; " * 4 + "change it."
    )
    now = glance(world)
    failed = replace(now, in_flight=0, hydration=replace(now.hydration, failure=failure, paused_by=None))
    console = Console(file=Screen("utf-8"), width=100)
    console.print(overview([failed, now], console))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert failure in " ".join(text.split())
    assert max(map(cell_len, text.splitlines())) <= 100


@pytest.mark.parametrize(("width", "told"), [(100, "1:40"), (140, "1:40 (1:22 to 2:07)")])
def test_a_wide_screen_has_room_for_the_eta_s_interval(world: World, width: int, told: str):
    world.ledger.resume(world.hydration.id, who="ada")
    progress = replace(glance(world).progress, total=1_000, committed=0)
    now = replace(glance(world), progress=progress, speed=10.0, recent=(7.0, 10.0, 13.0, 10.0))
    console = Console(file=Screen("utf-8"), width=width)
    console.print(overview([now, now], console))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert f"  {told}" in lines[1]
    assert max(cell_len(line) for line in lines) <= width


def test_a_log_gets_one_line(world: World):
    line = format_log_line(glance(world))
    assert line.count("\n") == 0
    assert line.startswith("sink paused: [")
    assert "source 100 offsets/s, lag 3,600 -> gate 2 of 3, closed -> read 30% busy" in line
    assert line.endswith("gate closed: paused by ada: release night")


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (0.5, "0.5"), (9_999, "9,999"), (12_345, "12.3k"), (4.5e6, "4.5M"), (2e9, "2.0G")]
)
def test_numbers_in_few_characters(number: float, text: str):
    assert compact(number) == text
    assert amount(number, "rows") == f"{text} rows"


def test_amounts_have_their_unit():
    assert amount(3 * 2**20, "bytes") == "3.0 MiB"
    assert amount(45, "transactions") == "45 tx"


def test_credits_that_are_too_many_are_drawn_in_proportion():
    assert UNICODE.dots(2, 3, 4, 15) == "●●○·"
    assert UNICODE.dots(50, 75, 100, 10) == "●●●●●○○○··"
    assert len(UNICODE.time(StageTime(busy=1, idle=1, backpressured=1), 15)) == 15
