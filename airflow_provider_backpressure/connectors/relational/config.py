"""What declarations of a database's tables as sources share. Imports no driver."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, TypeVar

from airflow_provider_backpressure.core.config import check_some, take_tuples
from airflow_provider_backpressure.core.declaration_checks import Declared
from airflow_provider_backpressure.core.table_selection import one_of


@dataclass(frozen=True, kw_only=True)
class TableSource(Declared):
    """A table or view, or a part of it. Raises :class:`InvalidDeclaration`."""

    templated: ClassVar[tuple[str, ...]] = (
        "conn_id",
        "table",
        "columns",
        "where",
        "split_column",
        "increment_column",
        "as_text",
    )
    """Fields whose text may be a template. Not Airflow's own name for it: Airflow would assign to a frozen value."""

    conn_id: str
    table: str = ""
    """Its name, as the database's SQL spells it."""
    tables: tuple[str, ...] | str = ()
    """Several: their names, or a pattern over ``schema.table`` as ``public.order_*``, looked up in each run.

    Each is a hydration of its own; the sink says where it goes by ``{table}`` and ``{schema}`` in its name."""
    columns: tuple[str, ...] | None = None
    """Names of the columns to be read, exactly as the table has them; ``None`` for all that are visible."""
    where: str | None = None
    """A condition in SQL, evaluated by the source in UTC; rows for which it is true are read."""
    split_column: str | None = None
    """Column by which ranges are cut; ``None`` for the primary key or another unique one.

    It may hold NULLs and need not be unique, but should have an index. A view has to name one."""
    increment_column: str | None = None
    """A column that rises with every new or changed row: later runs read what lies above the value committed last.

    Rows that are committed late with a lower value, and deletes, are not seen."""
    as_text: tuple[str, ...] = ()
    """Names of columns that are read as the text that the database prints for them."""

    def __post_init__(self) -> None:
        """Take lists for tuples, and refuse a lone name where several are meant."""
        one_of(self.table, self.tables, type(self).__name__)
        take_tuples(self, "columns", "as_text", texts=("tables",))
        check_some(self, self.columns)


StreamT = TypeVar("StreamT", bound=TableSource)


def make_stream(source: TableSource, declaration: type[StreamT], stream: str, tables: Sequence[str]) -> StreamT:
    """Return the declaration of the log that ``tables`` of a source share. ``stream``: the id of its hydration."""
    own = {field.name: getattr(source, field.name) for field in fields(source) if field.init}
    only = {"table": f"backpressure_{stream}", "tables": (), "columns": None, "where": None, "as_text": ()}
    return declaration(**{**own, **only, "stream": stream, "members": tuple(tables)})
