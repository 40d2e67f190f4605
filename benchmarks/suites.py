"""All suites, how long each takes, and the command of each for so many rows."""

from collections.abc import Callable
from dataclasses import dataclass

ROWS = 10_000_000
"""Of a run in full size; everything else is derived from them."""

FITS_IN_A_HEAP = 5_000_000
"""Most rows that Spark's JDBC source without any option gets through with the heap that all sides have."""
BESIDE_DEFAULT_JDBC = "raw,jdbc-tuned,copy,frame,pgcopydb,dlt,ingestr,sling"


@dataclass(frozen=True, kw_only=True)
class Suite:
    """One benchmark. ``options`` returns its command's words for so many rows."""

    name: str
    about: str
    minutes: float
    """That it takes at :data:`ROWS`, about, on two cores."""
    options: Callable[[int], list[str]]

    def words(self, rows: int, *, write_docs: bool = False) -> list[str]:
        """Return what follows ``python -m``."""
        written = ["--write-docs"] if write_docs else []
        return [f"benchmarks.{self.name}", *self.options(rows), *written]


def _once(rows: int) -> list[str]:
    return ["--rows", str(rows), "--rounds", "1"]


def _between_postgres(rows: int) -> list[str]:
    """Return the options of the largest comparison: a small one needs no second round, and only a small table fits
    into the heap of default JDBC.
    """
    sides = [] if rows <= FITS_IN_A_HEAP else ["--sides", BESIDE_DEFAULT_JDBC]
    return ["--rows", str(rows), "--rounds", "2" if rows >= ROWS / 10 else "1", *sides]


def _memory(rows: int) -> list[str]:
    return ["--rows", *map(str, (rows // 5, rows, rows * 3))]


def _lakes(rows: int) -> list[str]:
    """Return the options that take a fifth of the rows, a quarter of them in a window, and the small windows."""
    own = max(rows // 5, 2_000)
    small = ["--small", "50" if rows >= ROWS else "6", "--few", str(own // 200)]
    return ["--rows", str(own), "--windows", "3" if rows >= ROWS else "1", "--changes", str(own // 4), *small]


def _scaled(option: str, share: float, least: int) -> Callable[[int], list[str]]:
    """Return the option that takes a part of the rows, but not less than so many."""
    return lambda rows: [option, str(max(int(rows * share), least))]


SUITES = (
    Suite(
        name="pg_to_pg",
        about="PostgreSQL to PostgreSQL: ours, raw COPY, Spark JDBC, pgcopydb, dlt, ingestr, Sling; total and steady",
        minutes=40,
        options=_between_postgres,
    ),
    Suite(
        name="killed",
        about="every side gets kill -9 at half time and is run again: rows lost, doubled, read again",
        minutes=12,
        # A side that is done sooner than it can be killed shows nothing.
        options=_scaled("--rows", 0.2, 500_000),
    ),
    Suite(name="memory", about="ours over three sizes, and with a sink ten times slower", minutes=20, options=_memory),
    Suite(
        name="kafka_to_pg",
        about="Kafka to PostgreSQL: ours, raw COPY, Spark's batch, Structured Streaming; total and steady",
        minutes=12,
        options=_once,
    ),
    Suite(
        name="upserts",
        about="a topic upserted into PostgreSQL: in order, by partitions and by parts of the keys side by side",
        minutes=10,
        options=_scaled("--records", 0.1, 2_000),
    ),
    Suite(
        name="mysql_to_pg",
        about="MySQL to PostgreSQL: ours, raw COPY, tuned Spark JDBC; total and steady",
        minutes=12,
        options=_once,
    ),
    Suite(
        name="pg_to_parquet",
        about="PostgreSQL to Parquet: ours, raw COPY with Arrow, Spark JDBC; total and steady",
        minutes=12,
        options=_once,
    ),
    Suite(
        name="copy_loop",
        about="the loop of the copy path alone, and what part of it the checksum takes",
        minutes=4,
        options=_scaled("--rows", 0.2, 1),
    ),
    Suite(
        name="frame_steps",
        about="what each step of the frame path costs a row, from PostgreSQL into Parquet",
        minutes=2,
        options=_scaled("--rows", 0.1, 1),
    ),
    Suite(
        name="registry",
        about="what a record in Avro, Protobuf or JSON costs in the reader, beside other decoders",
        minutes=1,
        options=_scaled("--records", 0.02, 5_000),
    ),
    Suite(
        name="at_once",
        about="eight tables, two at a time or all at once",
        minutes=6,
        options=_scaled("--rows", 0.05, 1),
    ),
    Suite(
        name="mirror",
        about="a table of which 1 % has changed in a tenth of its ranges: mirrored, copied again, only read",
        minutes=15,
        options=_scaled("--rows", 1, 20_000),
    ),
    Suite(
        name="verify",
        about="what verification takes beside the copy and beside reading both sides, with and without a key",
        minutes=8,
        options=_scaled("--rows", 0.2, 20_000),
    ),
    Suite(
        name="schemas",
        about="a thousand small tables from one declaration, by one task group",
        minutes=20,
        options=_scaled("--tables", 0.0001, 20),
    ),
    Suite(
        name="orchestration",
        about="what a range costs without Spark",
        minutes=2,
        options=lambda rows: [str(max(rows // 1_000, 100))],
    ),
    Suite(
        name="million",
        about="a plan of a million ranges",
        minutes=4,
        options=_scaled("--ranges", 0.1, 20_000),
    ),
    Suite(
        name="steady",
        about="changes a second in the steady state, and how late they are",
        minutes=6,
        options=lambda rows: ["--changes", str(max(rows // 20, 10_000)), "--seconds", "60" if rows >= ROWS else "10"],
    ),
    Suite(
        name="stream",
        about="changes of 8 and 50 tables: by one log, a log for each, PostgreSQL's replication; how late rows are",
        minutes=24,
        options=lambda rows: [
            *("--changes", str(max(int(rows * 0.03), 5_000))),
            *("--seconds", "60" if rows >= ROWS else "10"),
        ],
    ),
    Suite(
        name="lakes",
        about="PostgreSQL to Iceberg and Delta by Spark: appends, windows of changes, files and scans after them",
        minutes=60,
        options=_lakes,
    ),
    Suite(
        name="push",
        about="push against polling while ranges wait",
        minutes=14,
        options=lambda rows: [] if rows >= ROWS else ["--samples", "20", "--seconds", "5", "--idle", "3"],
    ),
)
