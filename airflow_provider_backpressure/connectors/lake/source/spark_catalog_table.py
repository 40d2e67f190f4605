"""A table of the cluster's catalogs as a source, opened: Spark's own connector reads it."""

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException, IllegalArgumentException
from pyspark.sql import types as spark

from airflow_provider_backpressure.connectors.lake.source.iceberg_columns import is_altered
from airflow_provider_backpressure.connectors.lake.source.spark_boundaries import CutColumn, list_conditions
from airflow_provider_backpressure.connectors.lake.source.spark_sql_names import CatalogName, join_names
from airflow_provider_backpressure.connectors.lake.source.spark_types import Carried, KeyKind, carry, find_key_kind
from airflow_provider_backpressure.connectors.lake.spark.sql_session import SqlSession
from airflow_provider_backpressure.connectors.lake.spark.table import first_line, translate_errors
from airflow_provider_backpressure.connectors.lake.tasks.spark_read import SETTINGS, ZONE
from airflow_provider_backpressure.connectors.relational.user_queries import check_no_clock, refuse_clock
from airflow_provider_backpressure.core.config import Consistency, suffix
from airflow_provider_backpressure.core.health_signal_declarations import Watched
from airflow_provider_backpressure.core.ports import ChangeLog, Health, Keeper, Unread
from airflow_provider_backpressure.core.progress.source_position import Unit, Upstream
from airflow_provider_backpressure.core.snapshot.bounds import Bounds, KeyBounds, Values, cover, cut
from airflow_provider_backpressure.core.snapshot.plan import Plan, Snapshot
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange, number_ranges
from airflow_provider_backpressure.core.snapshot.spark_messages import ReadSpec, Slice, Window, null_bounds
from airflow_provider_backpressure.exceptions import (
    RESTART,
    SinkRefused,
    SinkUnavailable,
    SourceRefused,
    SourceUnavailable,
    strip_frames,
)

if TYPE_CHECKING:
    from airflow_provider_backpressure.connectors.lake.source.spark_config import SparkSource

log = logging.getLogger(__name__)

KIND = "spark_catalog"
VERSIONED = frozenset({"delta", "iceberg"})
"""Formats whose tables are read as they were at the moment of the plan."""
FILES = VERSIONED | {"avro", "csv", "hive", "json", "orc", "parquet", "text"}
"""Formats of which Spark itself compares values; of others a database may, in its own order."""
_DETAILS = "# Detailed Table Information"
SAMPLE = 1_000
"""Rows that are looked at for their size."""
_CLOCK = re.compile(
    r"\b(?:now|rand|randn|random|randstr|uniform|uuid|shuffle|curdate|curtime|monotonically_increasing_id|"
    r"spark_partition_id|input_file_name)\s*\(|\bunix_timestamp\s*\(\s*\)"
    r"|(?<![\w.])(?:current_date|current_time|current_timestamp|localtimestamp|current_user|session_user)\b",
    re.IGNORECASE,
)
_TODAY = re.compile(
    r"\b(?:date|timestamp(?:_ltz|_ntz)?)(?:\s|--[^\n]*\n|/\*.*?\*/)*r?(['\"]\s*(?:now|today|tomorrow|yesterday)\b)",
    re.IGNORECASE | re.DOTALL,
)
"""Literals that Spark evaluates where a statement is parsed."""
_QUOTED_CALL = re.compile(r"`(\w+)`(?=\s*\()")


class SparkCatalogTable:
    """Implements :class:`..core.ports.Source`.

    An Iceberg or Delta table is read at the version that it had when it was planned, by every range and every attempt.
    """

    increments = False
    increment_column: str | None = None
    modules: tuple[str, ...] = ()

    def __init__(self, declared: "SparkSource", session: SqlSession, *, name: CatalogName) -> None:
        """Connect to nothing yet."""
        self._declared = declared
        self._session = session
        self._name = name
        self._where = declared.where if declared.where and declared.where.strip() else None
        chosen = suffix([declared.columns, self._where])
        self.identity = f"spark://{session.address.removeprefix('sc://')}/{name}{chosen}"
        self._fields: dict[str, dict[str, spark.StructField]] = {}
        """Columns by name, of each version that was asked for."""

    def snapshot(
        self,
        consistency: Consistency | None = None,
        *,
        after: str | None = None,
        previous: Window | None = None,
        counted: bool = True,
    ) -> Snapshot:
        """See :meth:`..core.ports.Source.snapshot`. Rows are counted."""
        if consistency not in (None, Consistency.STATIC):
            raise SourceRefused(
                f"{self._name} is read with consistency='static': an Iceberg or Delta table at the version that it has "
                "when it is planned, any other one as each range finds it."
            )
        with self._errors():
            format_ = self._find_format()
            version = self._find_version(format_)
            fields = self._read_fields(version)
            carried = self._carry(fields)
            self._check_condition(version)
            split = self._choose_split(fields, format_)
            sample = self._ask_arrow(f"SELECT {_list(carried)} {self._rows(version)} LIMIT {SAMPLE}")
            self._check_names(sample, format_)
            (row,) = self._ask(f"SELECT count(*) AS n {self._rows(version)}")
        # Rows that come into an Iceberg table that had no snapshot yet are of no version: the next plan has them.
        rows = int(row["n"]) if version or format_ not in VERSIONED else 0
        return Snapshot(
            source_identity=self.identity,
            columns=tuple(each.column for each in carried),
            key=(),
            split=split,
            unique=False,
            frontier={str(self._name): rows},
            total=rows,
            total_exact=True,
            row_bytes=sample.nbytes / sample.num_rows if sample.num_rows else 1.0,
            consistency=Consistency.STATIC,
            version=version,
            filtered=self._where is not None,
        )

    def ranges(self, snapshot: Snapshot, *, rows: int, bytes: int) -> Iterator[PlannedRange]:
        """See :meth:`..core.ports.Source.ranges`. By quantiles, so that skewed values do not make uneven ranges."""
        total = snapshot.total or 0
        if not total:
            return
        pieces: list[Bounds] = [KeyBounds(columns=snapshot.split, start=None, end=None)]
        most = max(1, min(rows, int(bytes / max(1.0, snapshot.row_bytes))))
        if snapshot.split and total > most:
            with self._errors():
                column = self._column(snapshot.split[0], snapshot.version)
                _, filled, low = column.measure()
                whole = KeyBounds(columns=snapshot.split, start=None, end=None)
                found = column.list_boundaries(whole, parts=-(-filled // most))
                # Nothing lies below the smallest value.
                boundaries = [each for each in found if each[0] != f"{low}{column.kind.suffix}"]
            pieces = [*cover(snapshot.split, boundaries)]
            if len(pieces) > 1:
                pieces += null_bounds(snapshot.columns, snapshot.split)
        expected = -(-total // len(pieces))
        yield from number_ranges(pieces, rows=expected, row_bytes=snapshot.row_bytes)

    def cut(self, read: ReadSpec, bounds: Bounds, *, parts: int) -> Sequence[Bounds]:
        if not isinstance(bounds, KeyBounds) or not bounds.columns:
            return [bounds]
        with self._errors():
            boundaries = list(self._column(bounds.columns[0], _version_of(read)).list_boundaries(bounds, parts=parts))
        pieces: list[Bounds] = [*cut(bounds, boundaries)]
        # Open bounds hold the rows without a value too, and no piece of them does.
        return [*pieces, *null_bounds(read.columns, bounds.columns)] if bounds.is_open and len(pieces) > 1 else pieces

    def in_order(self, read: ReadSpec, columns: Sequence[str], values: Sequence[Values]) -> list[Values]:
        with self._errors():
            kind = self._key_kind(columns[0], _version_of(read))
        return sorted(values, key=lambda value: kind.order(value[0]))

    def keep(self, plan: Plan) -> Keeper:
        """See :meth:`..core.ports.Source.keep`. Versions of a table need no connection that holds them."""
        raise SourceRefused(f"{self._name} is read with consistency='static', which needs no snapshot.")

    def read_spec(self, snapshot: Snapshot) -> ReadSpec:
        return ReadSpec(
            kind=KIND,
            conn_id=self._declared.spark_conn_id,
            columns=snapshot.columns,
            parts=(snapshot.version, self._name.sql) if snapshot.version else (),
            tasks=self._declared.tasks,
        )

    def slice(self, read: ReadSpec, bounds: Bounds, slice_id: str) -> Slice:
        """See :meth:`..core.ports.Source.slice`. Asks for the columns' types once, then nothing."""
        version = _version_of(read)
        with self._errors():
            fields = self._known_fields(version)
            conditions = list_conditions(bounds, lambda name: self._key_kind(name, version))
        split = bounds.columns if isinstance(bounds, KeyBounds) else ()
        found = [(column, fields.get(column.name)) for column in read.columns]
        carried = [(column, field and carry(field, ordered=split)) for column, field in found]
        changed = [column.name for column, each in carried if not each or each.column.type != column.type]
        if changed:
            raise SourceRefused(
                f"{self._name} has changed since it was planned: {join_names(changed)} is gone or of another type. "
                f"What is committed stays; {RESTART}."
            )
        rows = " AND ".join([self._rows(version), *conditions])
        query = f"SELECT {_list([each for _, each in carried if each])} {rows}"
        return Slice(slice_id=slice_id, query=query, bounds=bounds.to_json())

    def check_range(self, plan: Plan, bounds: Bounds) -> None:
        """See :meth:`..core.ports.Source.check_range`. By the catalog: the table, its version and its columns."""
        self._fields.clear()
        self.slice(plan.read, bounds, "")

    def log(self, hydration_id: str) -> ChangeLog:
        """See :meth:`..core.ports.Source.log`. There is none that Spark could replay."""
        raise SourceRefused(f"{self._name} has no log to be replayed: use consistency='static'.")

    def health(self, watched: Sequence[Watched], *, seconds: float, unread: Unread | None = None) -> Health:
        raise SourceRefused(
            f"Spark does not show the {watched[0].kind} of what is behind {self._name}: leave {watched[0].name} out."
        )

    def upstream(self) -> Upstream:
        """See :meth:`..core.ports.Source.upstream`. Nothing: a count of the rows would not be cheap."""
        return Upstream(unit=Unit.ROWS, at={})

    def close(self) -> None:
        self._session.close()

    def _find_format(self) -> str:
        """Return the table's format in small letters; empty for a view, and where the catalog does not say."""
        rows = self._ask(f"DESCRIBE TABLE EXTENDED {self._name.sql}")
        said = [(row["col_name"], row["data_type"]) for row in rows]
        # Before this line are the columns, of which one may have the name that is looked for.
        names = [name for name, _ in said]
        about = dict(said[names.index(_DETAILS) :]) if _DETAILS in names else {}
        return str(about.get("Provider", "")).lower()

    def _find_version(self, format_: str) -> str:
        """Return the version of a table as it is now; empty where it has none.

        ``SourceRefused`` where an Iceberg table has other columns by now, since its version cannot be read with them.
        Of Delta it is ``number@id``: a table that is dropped and made again has the same numbers.
        """
        if format_ in FILES:
            # The server may keep rows and lists of files for all sessions, without what others have written since.
            self._ask(f"REFRESH TABLE {self._name.sql}")
        if format_ not in VERSIONED:
            return ""
        if format_ == "delta":
            id_ = self._ask(f"DESCRIBE DETAIL {self._name.sql}")[0]["id"]
            return f"{self._ask(f'DESCRIBE HISTORY {self._name.sql} LIMIT 1')[0]['version']}@{id_}"
        refs = self._ask(f"SELECT snapshot_id FROM {self._name.sql}.refs WHERE name = 'main'")  # noqa: S608
        version = str(refs[0]["snapshot_id"]) if refs else ""
        if version and is_altered(self._spark(), self._name.sql, version):
            remedy = f"INSERT INTO {self._name.sql} SELECT * FROM {self._name.sql} WHERE false"  # noqa: S608
            raise SourceRefused(
                f"The columns of {self._name} were altered after its last commit, and Iceberg reads a version with the "
                f"columns of its commit. Make a commit without rows, by {remedy}, and clear the task."
            )
        return version

    def _read_fields(self, version: str) -> dict[str, spark.StructField]:
        # Without the condition, of which an error is to speak for itself.
        schema = self._spark().sql(f"SELECT * {self._table_sql(version)}").schema
        self._fields[version] = {field.name: field for field in schema.fields}
        return self._fields[version]

    def _known_fields(self, version: str) -> dict[str, spark.StructField]:
        try:
            return self._fields.get(version) or self._read_fields(version)
        except (AnalysisException, IllegalArgumentException) as error:
            raise SourceRefused(
                f"{self._name} cannot be read as it was planned any more: {first_line(error)}. What is "
                f"committed stays; {RESTART}."
            ) from strip_frames(error)

    def _table_sql(self, version: str) -> str:
        return f"FROM {self._name.sql}" + (f" VERSION AS OF {int(version.partition('@')[0])}" if version else "")

    def _rows(self, version: str) -> str:
        # A comment in the condition ends with its line.
        return f"{self._table_sql(version)} WHERE " + ("true" if self._where is None else f"(\n{self._where}\n)")

    def _carry(self, fields: dict[str, spark.StructField]) -> list[Carried]:
        names = self._declared.columns or tuple(fields)
        unknown = [name for name in names if name not in fields]
        if unknown:
            raise SourceRefused(f"{self._name} has no column {join_names(unknown)}.")
        if len(set(names)) < len(names):
            raise SourceRefused(f"A column of {self._name} is asked for twice: {join_names(names)}.")
        split = [name for name in [self._declared.split_column] if name]
        carried = {name: carry(fields[name], ordered=split) for name in names}
        odd = [f"{join_names([name])} ({fields[name].dataType.simpleString()})" for name in names if not carried[name]]
        if odd:
            raise SourceRefused(
                f"{self._name} has columns that cannot be carried exactly: {', '.join(odd)}. Leave them out by "
                "columns=, or read a view of the cluster that casts them."
            )
        return [each for each in carried.values() if each is not None]

    def _check_condition(self, version: str) -> None:
        """Raise ``SourceRefused`` where the condition asks the clock, or ends the brackets around it.

        The second form has other brackets around it: what closes the first ones and opens them again does not fit
        there. Ranges would overlap otherwise, since the conditions of their bounds follow it.
        """
        if self._where is None:
            return
        check_no_clock(self._where, self._name, text=_QUOTED_CALL.sub(r"\1", self._where), clock=_CLOCK)
        if found := _TODAY.search(self._where):
            refuse_clock(self._where, self._name, f"{found[1]}{found[1][0]}")
        spark = self._spark()
        _ = spark.sql(f"SELECT 1 {self._rows(version)}").schema
        try:
            _ = spark.sql(f"SELECT 1 {self._table_sql(version)} WHERE array(\n{self._where}\n) IS NOT NULL").schema
        except (AnalysisException, IllegalArgumentException) as error:
            raise SourceRefused(
                f"The condition {self._where!r} of {self._name} closes brackets that it has not opened, so that it "
                "would not hold for each range: put brackets around the whole of it."
            ) from strip_frames(error)

    def _choose_split(self, fields: dict[str, spark.StructField], format_: str) -> tuple[str, ...]:
        name = self._declared.split_column
        if name is None:
            if not self._declared.whole:
                raise SourceRefused(
                    f"{self._name} cannot be cut into ranges: name a split_column, or read it in one range with "
                    "whole=True."
                )
            return ()
        if name not in fields:
            raise SourceRefused(f"{self._name} has no column {join_names([name])} to be split by.")
        if self._declared.columns is not None and name not in self._declared.columns:
            raise SourceRefused(f"{join_names([name])}, by which {self._name} is split, has to be among its columns.")
        kind = find_key_kind(fields[name])
        shown = fields[name].dataType.simpleString()
        if kind is None:
            raise SourceRefused(
                f"{self._name} cannot be split by {join_names([name])}: its type is {shown}, and ranges are cut by "
                "columns of integers, decimals, texts, dates and timestamps."
            )
        if not kind.is_safe_outside and format_ not in FILES:
            raise SourceRefused(
                f"{self._name} cannot be split by {join_names([name])}: its type is {shown}, which the database behind "
                "the catalog may order in its own way. Name a column of integers, decimals or dates."
            )
        return (name,)

    def _check_names(self, sample: Any, format_: str) -> None:
        """Raise ``SourceRefused`` where every text is its column's name: the database was sent texts for names."""
        texts = [field.name for field in sample.schema if str(field.type) in ("string", "large_string")]
        if format_ in FILES or not texts or not sample.num_rows:
            return
        if all(set(sample.column(name).to_pylist()) == {name} for name in texts):
            raise SourceRefused(
                f"Each text of {self._name} is the name of its column: Spark quotes names in a way that the database "
                "takes for texts. Give the catalog a URL or a dialect of the database's kind, for MariaDB jdbc:mysql://."
            )

    def _column(self, name: str, version: str) -> CutColumn:
        return CutColumn(name=name, kind=self._key_kind(name, version), rows=self._rows(version), ask=self._ask)

    def _key_kind(self, name: str, version: str) -> KeyKind:
        field = self._known_fields(version).get(name)
        kind = None if field is None else find_key_kind(field)
        if kind is None:
            raise SourceRefused(f"{self._name} has changed: it can no longer be cut by {join_names([name])}.")
        return kind

    def _spark(self) -> Any:
        session = self._session.get()
        for name, value in {**SETTINGS, ZONE: "UTC"}.items():
            session.conf.set(name, value)
        return session

    def _ask(self, query: str) -> list[Any]:
        found: list[Any] = self._spark().sql(query).collect()
        return found

    def _ask_arrow(self, query: str) -> Any:
        return self._spark().sql(query).toArrow()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            with translate_errors(str(self._name)):
                yield
        except SinkUnavailable as error:
            # A server that was started again knows this session no more.
            self._session.forget()
            raise SourceUnavailable(str(error)) from error
        except SinkRefused as error:
            raise SourceRefused(str(error)) from error
        except UnicodeDecodeError as error:
            raise SourceRefused(
                f"{self._name} has a text that is no UTF-8: name another split_column, or cast the column to binary in "
                "a view of the cluster."
            ) from strip_frames(error)


def _version_of(read: ReadSpec) -> str:
    return read.parts[0] if read.parts else ""


def _list(carried: Sequence[Carried]) -> str:
    return ", ".join(each.sql for each in carried)
