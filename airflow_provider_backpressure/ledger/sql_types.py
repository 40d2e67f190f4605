"""Types and functions that each kind of database spells in its own way, for the ledger's tables and statements."""

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine, UserDefinedType

LongText = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")

_SIGNED_MAX = 2**63 - 1
# Padded to the six digits that SQLAlchemy stores, so that times compare as text.
SQLITE_NOW = "strftime('%Y-%m-%d %H:%M:%f000', 'now')"
"""SQLite's clock."""


class _Untyped(UserDefinedType[Any]):
    """SQLite's column without affinity: it keeps integers and text as they are given."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "BLOB"


class Unsigned64(TypeDecorator[int]):
    """An unsigned 64-bit count: ``NUMERIC(20,0)``.

    SQLite's integers end at 2^63 - 1 and its numeric affinity makes floats of what is above, so there a column without
    affinity holds integers, and text of 20 digits above: they sort rightly, and ``sum()`` of the former is exact.
    """

    impl = sa.Numeric(20, 0)
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> TypeEngine[Any]:
        """Choose the column by dialect."""
        return dialect.type_descriptor(_Untyped() if dialect.name == "sqlite" else sa.Numeric(20, 0))

    def process_bind_param(self, value: int | None, dialect: sa.Dialect) -> Any:
        """Spell a large value as text on SQLite."""
        if dialect.name == "sqlite" and value is not None and value > _SIGNED_MAX:
            return f"{value:020d}"
        return value

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> int | None:
        """Return a whole number, whatever the driver gives."""
        return None if value is None else int(value)


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC datetime with microseconds."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> TypeEngine[Any]:
        """Ask MySQL for microseconds."""
        if dialect.name in ("mysql", "mariadb"):
            return dialect.type_descriptor(mysql.DATETIME(fsp=6))
        return dialect.type_descriptor(sa.DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        """Take the zone off where the database does not know zones."""
        if value is None or dialect.name == "postgresql":
            return value
        return value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        """Return UTC, whatever zone the session has."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class utc_now(FunctionElement[datetime]):
    """The ledger database's clock at the moment of evaluation: not the transaction's start, and never the host's."""

    type = UtcDateTime()
    inherit_cache = True


@compiles(utc_now, "postgresql")
def _postgresql_now(element: utc_now, compiler: SQLCompiler, **_: Any) -> str:
    return "clock_timestamp()"


@compiles(utc_now, "sqlite")
def _sqlite_now(element: utc_now, compiler: SQLCompiler, **_: Any) -> str:
    return SQLITE_NOW


@compiles(utc_now, "mysql")
@compiles(utc_now, "mariadb")
def _mysql_now(element: utc_now, compiler: SQLCompiler, **_: Any) -> str:
    return "utc_timestamp(6)"


class whole_seconds(FunctionElement[int]):
    """Seconds of a time since 1970, rounded down."""

    type = sa.BigInteger()
    inherit_cache = True


@compiles(whole_seconds, "postgresql")
def _postgresql_seconds(element: whole_seconds, compiler: SQLCompiler, **options: Any) -> str:
    return f"CAST(floor(extract(epoch FROM {compiler.process(element.clauses, **options)})) AS bigint)"


@compiles(whole_seconds, "sqlite")
def _sqlite_seconds(element: whole_seconds, compiler: SQLCompiler, **options: Any) -> str:
    return f"CAST(strftime('%s', {compiler.process(element.clauses, **options)}) AS integer)"


@compiles(whole_seconds, "mysql")
@compiles(whole_seconds, "mariadb")
def _mysql_seconds(element: whole_seconds, compiler: SQLCompiler, **options: Any) -> str:
    return f"timestampdiff(SECOND, '1970-01-01', {compiler.process(element.clauses, **options)})"


class seconds_between(FunctionElement[float]):
    """Seconds from the first of two times to the second; NULL where one of them is."""

    type = sa.Double()
    inherit_cache = True


@compiles(seconds_between, "postgresql")
def _postgresql_between(element: seconds_between, compiler: SQLCompiler, **options: Any) -> str:
    start, end = (compiler.process(clause, **options) for clause in element.clauses)
    return f"CAST(extract(epoch FROM ({end} - {start})) AS double precision)"


@compiles(seconds_between, "sqlite")
def _sqlite_between(element: seconds_between, compiler: SQLCompiler, **options: Any) -> str:
    start, end = (compiler.process(clause, **options) for clause in element.clauses)
    return f"((julianday({end}) - julianday({start})) * 86400.0)"


@compiles(seconds_between, "mysql")
@compiles(seconds_between, "mariadb")
def _mysql_between(element: seconds_between, compiler: SQLCompiler, **options: Any) -> str:
    start, end = (compiler.process(clause, **options) for clause in element.clauses)
    return f"(timestampdiff(MICROSECOND, {start}, {end}) / 1000000.0)"
