"""The frame path over a real Spark Connect server and PostgreSQL: typed rows, transforms, one commit for each range."""

import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pytest

from airflow_provider_backpressure.core.config import Mode
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.spark_messages import ChecksumSpec, Column, ReadSpec, Transform
from airflow_provider_backpressure.exceptions import (
    OutOfMemory,
    PlanSuperseded,
    RangeFailed,
    RunnerRefused,
    SinkRefused,
    SourceRefused,
)
from airflow_provider_backpressure.runners.connect_runner import ConnectRunner
from airflow_provider_backpressure.spark.stream_end import BAD, END
from dev.services import Server
from tests import types_postgres
from tests.integration import transforms
from tests.integration.attempts import Begun, another, begin, columns_of, difference, execute, typed

pytestmark = pytest.mark.integration

SALES = """
CREATE TABLE sales AS
SELECT i AS id, (i % 10)::smallint AS shop, md5(i::text) AS code, (i * 1.5)::numeric(12, 2) AS price,
       NULLIF(i % 7, 0)::double precision AS gap, gen_random_uuid() AS ref, i % 2 = 0 AS even,
       timestamptz '2024-01-01 00:00+00' + i * interval '1 minute' AS at, NULLIF(repeat('x', i % 3), 'x') AS note
FROM generate_series(1, 30000) i
"""
ALL = "SELECT * FROM sales"


@dataclass(kw_only=True)
class Stage:
    """A source table, a runner, and what is needed to run ranges under a transform."""

    database: Endpoint
    runner: ConnectRunner
    read: tuple[Column, ...]

    def describe(self, transform: Transform) -> tuple[Column, ...]:
        """The columns that a transform makes."""
        return self.runner.describe(ReadSpec(kind="postgres", conn_id="source", columns=self.read), transform)

    def begin(self, transform: Transform | None, **options: Any) -> Begun:
        """Begin a plan for a target of the transform's columns."""
        values = {"columns": self.read if transform is None else self.describe(transform), "read": self.read}
        table = f"raw.t{uuid.uuid4().hex[:8]}"
        return begin(
            self.database, self.database, table=table, path="frame", transform=transform, **{**values, **options}
        )

    def run(self, begun: Begun, *queries: str, **changes: Any) -> Any:
        """Run one attempt at a range of these slices and return its result."""
        return self.runner.run(begun.spec(*(queries or (ALL,)), **changes)).result(120)

    def differs(self, begun: Begun, expected: str) -> int:
        """How many rows stand only in the target or only in what is expected."""
        return difference(self.database, expected, self.database, f"TABLE {begun.plan.write.target}")[2]


@pytest.fixture(scope="module")
def runner(connect: Server, logins: dict[str, Endpoint]) -> Iterator[ConnectRunner]:
    """One session for all tests, as a lane has one for all ranges."""
    with closing(ConnectRunner(connect.url, logins, transform=transforms.loud)) as runner:
        yield runner


@pytest.fixture
def stage(database: Endpoint, runner: ConnectRunner, logins: dict[str, Endpoint]) -> Stage:
    """A source table of 30,000 rows."""
    execute(database, SALES)
    logins.update({name: replace(database, conn_id=name) for name in ("source", "sink")})
    return Stage(database=database, runner=runner, read=columns_of(database, "sales"))


@pytest.mark.statement("X1", "X4")
def test_rows_pass_through_unchanged(stage: Stage) -> None:
    """X1, X4: without a transform every column keeps its type and every row its values, '' apart from NULL."""
    begun = stage.begin(None)
    result = stage.run(begun)
    assert result.rows == 30000
    assert stage.differs(begun, ALL) == 0
    marker = begun.markers()["0.0"]
    assert (marker.rows, marker.checksum) == (30000, result.slices[0].checksum)


def test_sql_makes_new_columns(stage: Stage) -> None:
    """A SELECT over ``source`` is described, the target made for it, and filled as PostgreSQL itself would."""
    begun = stage.begin(
        Transform(
            sql="""
            WITH few AS (SELECT * FROM source WHERE shop < 5)  -- {not a parameter}
            SELECT id, upper(code) AS upper, price * 2 AS twice, ref, note, at FROM few;
            """
        )
    )
    assert [(column.name, column.type) for column in begun.plan.write.columns] == [
        ("id", "integer"),
        ("upper", "text"),
        ("twice", "numeric(14,2)"),
        ("ref", "uuid"),
        ("note", "text"),
        ("at", "timestamp with time zone"),
    ]
    assert stage.run(begun).rows == 15000
    expected = "SELECT id, upper(code), (price * 2)::numeric(14,2) AS twice, ref, note, at FROM sales WHERE shop < 5"
    assert stage.differs(begun, expected) == 0


@pytest.mark.parametrize("name", [BAD, END])
@pytest.mark.parametrize("transform", [None, Transform(sql="SELECT * FROM source")])
def test_a_table_may_have_columns_of_our_own_names(stage: Stage, name: str, transform: Transform | None) -> None:
    """What we put behind the columns is known by its place: a table's own last column of that name is its own."""
    value = 'CASE WHEN i % 2 = 0 THEN \'{"reason": "r"}\' END' if name == BAD else "i % 3 = 0"
    execute(stage.database, f"CREATE TABLE odd AS SELECT i AS id, {value} AS {name} FROM generate_series(1, 100) i")
    stage.read = columns_of(stage.database, "odd")
    begun = stage.begin(transform)
    assert stage.run(begun, "SELECT * FROM odd").rows == 100
    assert stage.differs(begun, "SELECT * FROM odd") == 0


@pytest.mark.parametrize("reference", ["", "tests.integration.transforms:loud"])
def test_a_function_makes_new_columns(stage: Stage, reference: str) -> None:
    """A Python callable, handed over or named, with a function of its own module that runs on the executors."""
    begun = stage.begin(Transform(python=reference))
    assert stage.run(begun).rows == 30000
    assert stage.differs(begun, "SELECT id, upper(code) || '!' FROM sales") == 0


def test_a_function_meets_its_own_session(stage: Stage, connect: Server) -> None:
    """With several sessions in one process, a transform's functions ask the one that its frame belongs to."""
    read = ReadSpec(kind="postgres", conn_id="source", columns=stage.read)
    with closing(ConnectRunner(connect.url, {}, transform=transforms.at_home)) as other:
        for runner in (stage.runner, other, stage.runner):
            described = runner.describe(read, Transform(python="tests.integration.transforms:at_home"))
            assert [column.name for column in described] == [column.name for column in stage.read]


@pytest.mark.statement("X1")
@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM source WHERE false",
        "SELECT * FROM source WHERE id < 0",
        "SELECT * FROM source LIMIT 0",
        "SELECT shop, count(*) AS n FROM source WHERE id < 0 GROUP BY shop",
        "SELECT a.* FROM source a JOIN source b ON a.id = b.id + 1000000 ORDER BY a.id",
    ],
)
def test_an_empty_result_leaves_one_marker(stage: Stage, query: str) -> None:
    """X1: the optimiser may leave no partition at all; the range is committed all the same, once."""
    begun = stage.begin(Transform(sql=query))
    assert stage.run(begun, "SELECT * FROM sales WHERE id < 10", "SELECT * FROM sales WHERE id > 29990").rows == 0
    assert [marker.rows for marker in begun.markers().values()] == [0]


@pytest.mark.statement("X1")
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (
            "SELECT shop, count(*) AS n, sum(gap) AS gaps FROM source GROUP BY shop",
            "SELECT shop, count(*), sum(gap) FROM sales GROUP BY shop",
        ),
        ("SELECT /*+ REPARTITION(7) */ id FROM source", "SELECT id FROM sales"),
        ("SELECT id FROM source ORDER BY code", "SELECT id FROM sales"),
        (
            "SELECT a.id FROM source a JOIN source b ON a.id = b.id + 10",
            "SELECT id FROM sales WHERE id > 10",
        ),
    ],
)
def test_after_a_shuffle_the_range_is_committed_whole(stage: Stage, query: str, expected: str) -> None:
    """X1: two slices, any number of partitions, one transaction and one marker."""
    begun = stage.begin(Transform(sql=query))
    stage.run(begun, "SELECT * FROM sales WHERE id <= 20000", "SELECT * FROM sales WHERE id > 20000")
    assert stage.differs(begun, expected) == 0
    (marker,) = begun.markers().values()
    assert marker.slice_id == "0.0"
    assert len(marker.bounds["pieces"]) == 2


@pytest.mark.statement("X1")
def test_ranges_of_one_session_do_not_mix(stage: Stage) -> None:
    """X1: several at once, each with its own ``source``."""
    begun = stage.begin(Transform(sql="SELECT id, shop FROM source"))
    specs = [begun.spec(f"SELECT * FROM sales WHERE shop = {shop}", seq=shop) for shop in range(4)]
    results = [future.result(120) for future in [stage.runner.run(spec) for spec in specs]]
    assert [result.rows for result in results] == [3000] * 4
    assert stage.differs(begun, "SELECT id, shop FROM sales WHERE shop < 4") == 0


def test_an_upsert_replaces_rows_by_key(stage: Stage) -> None:
    """The last commit of a key wins; a key that comes twice in one range is refused."""
    begun = stage.begin(Transform(sql="SELECT id % 100 AS id, code FROM source"), mode=Mode.UPSERT, key=("id",))
    stage.run(begun, "SELECT * FROM sales WHERE id <= 100")
    stage.run(begun, "SELECT * FROM sales WHERE id BETWEEN 101 AND 150", seq=1)
    expected = "SELECT id % 100 AS id, code FROM sales WHERE id BETWEEN 51 AND 150"
    assert stage.differs(begun, expected) == 0
    with pytest.raises(SinkRefused, match="holds several rows of one key"):
        stage.run(begun, seq=2)
    assert set(begun.markers()) == {"0.0", "1.0"}


@pytest.mark.statement("X1")
def test_equal_attempts_and_later_ones_commit_once(stage: Stage) -> None:
    """X1: the same attempt twice at once, then a later one: rows once, and each is told what the marker says."""
    begun = stage.begin(None)
    both = [stage.runner.run(begun.spec(ALL)) for _ in range(2)]
    results = [future.result(120) for future in both] + [stage.run(begun, attempt=2)]
    assert {(result.rows, result.slices[0].checksum) for result in results} == {
        (30000, begun.markers()["0.0"].checksum)
    }
    assert stage.differs(begun, ALL) == 0


@pytest.mark.statement("X1")
def test_a_superseded_plan_is_refused(stage: Stage) -> None:
    """X1: the fence holds on this path too."""
    begun = stage.begin(None)
    begun.superseded()
    with pytest.raises(PlanSuperseded, match="no longer holds"):
        stage.run(begun)


@pytest.mark.statement("X1")
def test_half_a_range_is_not_committed(stage: Stage) -> None:
    """X1: a transform that breaks off in mid-range ends the writer's input without its last row: nothing stays."""
    begun = stage.begin(Transform(python="tests.integration.transforms:fragile"))
    with pytest.raises(RangeFailed, match="ZeroDivisionError"):
        stage.run(begun)
    assert execute(stage.database, f"SELECT count(*) FROM {begun.plan.write.target}") == [(0,)]
    assert begun.markers() == {}


@pytest.mark.fault(22)
def test_memory_that_ran_out_is_told_apart(stage: Stage) -> None:
    """A lane cuts such a range; it does not try the same again."""
    begun = stage.begin(Transform(python="tests.integration.transforms:hungry"))
    with pytest.raises(OutOfMemory, match="MemoryError"):
        stage.run(begun)


@pytest.mark.statement("X5")
@pytest.mark.parametrize(
    ("transform", "sentence"),
    [
        (Transform(sql="SELECT amount FROM source"), "Spark refused the transform: .*amount"),
        (Transform(sql="DROP TABLE source"), "Spark refused the transform: .*"),
        (Transform(sql="SELECT array(id) AS ids FROM source"), "makes ids a array<int>"),
        (Transform(sql="SELECT id, id FROM source"), "gives id more than once"),
        (Transform(python="tests.integration.transforms:broken"), "broken failed: KeyError: .*no column amount"),
        (Transform(python="tests.integration.transforms:counting"), "reads rows while its columns are determined"),
        (Transform(python="tests.integration.transforms:viewing"), "makes a temporary view of a range's rows"),
        (Transform(python="tests.integration.transforms:viewing_by_statement"), "makes a temporary view of a range's"),
        (Transform(python="tests.integration.transforms:no_frame"), "must return a DataFrame, not list"),
        (Transform(python="tests.integration.transforms:missing"), "cannot be imported: .*missing"),
        (Transform(python="nowhere:at_all"), "cannot be imported: No module named 'nowhere'"),
        (Transform(python="tests.integration.transforms:NOT_A_FUNCTION"), "is not a function"),
    ],
)
def test_a_bad_transform_is_one_sentence_before_any_row(stage: Stage, transform: Transform, sentence: str) -> None:
    """X5: found by analysis."""
    with pytest.raises(RunnerRefused, match=f"^[^\n]*{sentence}[^\n]*$"):
        stage.describe(transform)


def test_a_view_of_other_rows_may_be_joined(stage: Stage) -> None:
    """Such a view is the same in every range, whichever has made it last."""
    begun = stage.begin(Transform(python="tests.integration.transforms:joining"))
    stage.run(begun)
    assert stage.differs(begun, "SELECT id, CASE id % 2 WHEN 1 THEN 'odd' ELSE 'even' END FROM sales") == 0


@pytest.mark.statement("X6")
def test_a_transform_changed_in_mid_plan_is_refused(stage: Stage) -> None:
    """X6: other columns than planned, in number, by name or of another type, which a target would round."""
    begun = stage.begin(Transform(sql="SELECT id, code FROM source"))
    for query in ("SELECT id FROM source", "SELECT code, id FROM source"):
        with pytest.raises(RunnerRefused, match=r"^[^\n]*columns[^\n]*$"):
            stage.run(begun, transform=Transform(sql=query))
    assert begun.markers() == {}
    begun = stage.begin(Transform(sql="SELECT id, to_date('2024-05-06') AS day FROM source"))
    with pytest.raises(RunnerRefused, match=r"^The transform gives day as timestamp\[us.* where date was planned: .*"):
        stage.run(begun, transform=Transform(sql="SELECT id, timestamp'2024-05-06 07:08:09' AS day FROM source"))
    assert begun.markers() == {}


HARD = {"numeric_15_2", "date_", "timestamp_", "timestamptz_"}
"""Columns of the table of every type with values that Spark's counterpart cannot hold."""


@pytest.mark.statement("X3", "X4")
def test_every_type_arrives_across_databases(stage: Stage, logins: dict[str, Endpoint]) -> None:
    """X3, X4: by its counterpart or as text, and what the marker says is what is there."""
    with another(stage.database) as other:
        columns = typed(stage.database, other)
        read = tuple(replace(each, type="text") if each.name in HARD else each for each in columns)
        chosen = ", ".join(f"{each.name}::text" if each.name in HARD else each.name for each in columns)
        begun = begin(stage.database, other, table="raw.every", columns=columns, read=read, path="frame")
        logins["sink"] = begun.sink
        result = stage.run(begun, f"SELECT {chosen} FROM every")
        assert result.rows == types_postgres.row_count()
        assert difference(stage.database, "TABLE every", other, "TABLE raw.every")[2] == 0
        spec = ChecksumSpec(kind="postgres", conn_id="sink", query="SELECT * FROM raw.every")
        assert stage.runner.checksum(spec).result(60).checksum == begun.markers()["0.0"].checksum


@pytest.mark.statement("X4")
@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("timestamp with time zone", "infinity"),
        ("timestamp without time zone", "0044-03-15 00:00:00 BC"),
        ("date", "-infinity"),
        ("numeric(15,2)", "NaN"),
    ],
)
def test_a_value_that_spark_cannot_hold_names_its_column(stage: Stage, type_: str, value: str) -> None:
    """X4: refused with the way out, and carried whole when that is taken."""
    execute(stage.database, f"CREATE TABLE hard AS SELECT 1 AS id, '{value}'::{type_} AS odd, 'x' AS name")
    columns = columns_of(stage.database, "hard")
    begun = stage.begin(None, columns=columns, read=columns)
    with pytest.raises(SourceRefused, match=r'^Column odd \([^\n]* as_text=\("odd",\)[^\n]*$'):
        stage.run(begun, "SELECT * FROM hard")
    as_text = tuple(replace(column, type="text") if column.name == "odd" else column for column in columns)
    assert stage.run(begun, "SELECT id, odd::text, name FROM hard", read=replace(begun.plan.read, columns=as_text))
    assert stage.differs(begun, "TABLE hard") == 0
