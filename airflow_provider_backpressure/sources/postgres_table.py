"""A PostgreSQL table as a source, opened."""

import hashlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from psycopg.sql import Composable

from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.messages import Column, ReadSpec, Slice
from airflow_provider_backpressure.core.ranges import Bounds, PlannedRange
from airflow_provider_backpressure.core.snapshot import Snapshot
from airflow_provider_backpressure.exceptions import SourceRefused, SourceUnavailable
from airflow_provider_backpressure.postgres.bounds import key_cast
from airflow_provider_backpressure.postgres.catalog import CatalogColumn, Relation, place
from airflow_provider_backpressure.postgres.connecting import READ_ONLY
from airflow_provider_backpressure.postgres.errors import Errors
from airflow_provider_backpressure.postgres.names import QualifiedName, listed
from airflow_provider_backpressure.postgres.session import Session
from airflow_provider_backpressure.sources.postgres_checks import (
    checked_condition,
    chosen_columns,
    chosen_key,
    readable_table,
)
from airflow_provider_backpressure.sources.postgres_query import KeyedTable, column_sql
from airflow_provider_backpressure.sources.postgres_ranges import cut_ranges
from airflow_provider_backpressure.sources.postgres_size import measured

if TYPE_CHECKING:
    from airflow_provider_backpressure.sources.postgres import PostgresSource

KIND = "postgres"
ERRORS = Errors(refused=SourceRefused, unavailable=SourceUnavailable)


class PostgresTable:
    """Implements :class:`..core.ports.Source`. Threads may share it; it connects at the first question."""

    def __init__(self, declared: "PostgresSource", endpoint: Endpoint) -> None:
        self._declared = declared
        self._name = QualifiedName.parse(declared.table)
        self._session = Session(endpoint, errors=ERRORS, settings=READ_ONLY)
        self._keyed_tables: dict[str, KeyedTable] = {}
        self._where = declared.where if declared.where and declared.where.strip() else None
        self.identity = f"postgres://{endpoint.address}/{self._name}{self._part()}"

    def snapshot(self) -> Snapshot:
        """See :meth:`..core.ports.Source.snapshot`. Rows are counted where that takes seconds, else estimated."""
        table = readable_table(self._session, self._name)
        columns = chosen_columns(self._session, table, self._declared.columns, self._declared.as_text)
        key = chosen_key(self._session, table, self._declared.split_column)
        if key.name in self._declared.as_text:
            raise SourceRefused(f"{self._name} is cut by {listed([key.name])}, which cannot be read as text too.")
        if self._where is not None:
            checked_condition(self._session, table, self._where)
        keyed = self._keyed(table, key.name)
        size = measured(self._session, table, keyed, [self._sql(column.name) for column in columns])
        return Snapshot(
            source_identity=self.identity,
            columns=tuple(self._column(column, key) for column in columns),
            key=(key.name,),
            frontier={} if size.rows is None else {str(self._name): size.rows},
            total=size.rows,
            total_exact=size.exact,
            row_bytes=size.row_bytes,
            consistency=Consistency.STATIC,
        )

    def ranges(self, snapshot: Snapshot, *, rows: int) -> Iterator[PlannedRange]:
        """See :meth:`..core.ports.Source.ranges`."""
        return cut_ranges(
            self._session,
            self._cut_by(snapshot.key[0]),
            rows=rows,
            total=snapshot.total,
            exact=snapshot.total_exact,
            row_bytes=snapshot.row_bytes,
        )

    def read_spec(self, snapshot: Snapshot) -> ReadSpec:
        """See :meth:`..core.ports.Source.read_spec`."""
        table = readable_table(self._session, self._name)
        return ReadSpec(
            kind=KIND,
            conn_id=self._declared.conn_id,
            columns=snapshot.columns,
            place=place(self._session, table.oid),
        )

    def slice(self, read: ReadSpec, bounds: Bounds, slice_id: str) -> Slice:
        """See :meth:`..core.ports.Source.slice`. Asks the catalogue once for the key's type, then nothing."""
        columns = [self._sql(column.name) for column in read.columns]
        query = self._cut_by(bounds.column).rows(columns, bounds.start, bounds.end)
        return Slice(slice_id=slice_id, query=query.as_string(None), bounds=bounds.to_json())

    def close(self) -> None:
        """See :meth:`..core.ports.Source.close`."""
        self._session.close()

    def _cut_by(self, key: str) -> KeyedTable:
        """Return the table with the key of a plan, which may be an older one than the catalogue would give today."""
        if key not in self._keyed_tables:
            self._keyed_tables[key] = self._keyed(readable_table(self._session, self._name), key)
        return self._keyed_tables[key]

    def _keyed(self, table: Relation, key: str) -> KeyedTable:
        column = table.column(key)
        cast = key_cast(column.type) if column else None
        if cast is None:
            raise SourceRefused(f"{self._name} has changed: it can no longer be cut by {listed([key])}.")
        return KeyedTable(name=self._name, key=key, cast=cast, where=self._where)

    def _sql(self, name: str) -> Composable:
        return column_sql(name, as_text=name in self._declared.as_text)

    def _column(self, column: CatalogColumn, key: CatalogColumn) -> Column:
        return Column(
            name=column.name,
            type="text" if column.name in self._declared.as_text else column.type,
            nullable=not column.not_null,
            collation=key.collation if column.name == key.name else None,
        )

    def _part(self) -> str:
        """Return the identity's suffix: a part of a table is another source than the whole."""
        chosen = [self._declared.columns, self._where, self._declared.as_text]
        if not any(chosen):
            return ""
        return "#" + hashlib.sha256(json.dumps(chosen).encode()).hexdigest()[:12]
