"""A table beside the target that a probe fills and drops again."""

from dataclasses import replace
from typing import TYPE_CHECKING

from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.attempt_sessions import plan_prefix
from airflow_provider_backpressure.connectors.postgres.connect import Connection
from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName, quote
from airflow_provider_backpressure.connectors.postgres.sink.clone_ddl import alike, creation
from airflow_provider_backpressure.connectors.postgres.sink.leftovers import write_probe_comment
from airflow_provider_backpressure.connectors.postgres.sink.shadow_table import oid_of, publication_of
from airflow_provider_backpressure.connectors.postgres.sink.target import PostgresTarget
from airflow_provider_backpressure.core.capacity.saturation_curve import format_suffix
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.spark_messages import WriteSpec
from airflow_provider_backpressure.exceptions import SinkRefused

if TYPE_CHECKING:
    from airflow_provider_backpressure.connectors.postgres.sink.config import PostgresSink

MOST_BYTES = 63
"""PostgreSQL cuts longer names."""


class PostgresScratch(PostgresTarget):
    """Implements :class:`..core.ports.ScratchSink`: a target whose table is made like another one.

    What it may drop bears a name that it makes itself and the comment that it was created with.
    """

    def __init__(self, declared: "PostgresSink", endpoint: Endpoint, *, digits: str, indexes: bool) -> None:
        like, end = QualifiedName.parse(declared.table), format_suffix(digits)
        name = like.name.encode()[: MOST_BYTES - len(end)].decode(errors="ignore") + end
        schema = declared.system_schema or like.schema
        here = replace(declared, table=QualifiedName(schema=like.schema, name=name).sql, system_schema=schema)
        super().__init__(here, endpoint)
        self._like, self._indexes = like, indexes

    def drop(self, plan_id: str) -> None:
        """See :meth:`..core.ports.ScratchSink.drop`. Connections of the plan's attempts are ended."""
        self._end(plan_prefix(plan_id))

        def remove(connection: Connection) -> None:
            plans = sql.SQL(self._plans.name.sql)
            if oid_of(connection, self._plans.name) is not None:
                held = connection.execute(
                    sql.SQL("SELECT plan_id FROM {} WHERE target = %s FOR UPDATE").format(plans), (self._fence,)
                ).fetchone()
                if held is not None and held[0] != plan_id:
                    raise SinkRefused(f"{self._name} is held by plan {held[0]}: it is not dropped.")
            oid = oid_of(connection, self._name)
            if oid is not None:
                self._check_ours(connection, oid)
                connection.execute(sql.SQL("DROP TABLE {}").format(sql.SQL(self._name.sql)))
            for table in self._system:
                if oid_of(connection, table.name) is not None:
                    connection.execute(
                        sql.SQL("DELETE FROM {} WHERE target = %s AND plan_id = %s").format(sql.SQL(table.name.sql)),
                        (self._fence, plan_id),
                    )

        self._session.transaction(remove)

    def _create(self, connection: Connection, write: WriteSpec) -> None:
        """Create it with its comment, of the plan's columns where there is no target yet."""
        connection.execute(sql.SQL("SET LOCAL search_path TO ''"))
        self._check_rights(connection)
        oid = oid_of(connection, self._like)
        if oid is None:
            super()._create(connection, write)
        else:
            creation(connection, oid, self._name, indexes=self._indexes)
            alike(connection, oid, self._name)
        connection.execute(
            sql.SQL("COMMENT ON TABLE {} IS {}").format(sql.SQL(self._name.sql), sql.Literal(self._comment))
        )
        published = publication_of(connection, self._name)
        if published is not None:
            raise SinkRefused(
                f"{self._like} cannot be probed: the publication {quote(published)} would send the rows of "
                f"{self._name} to its subscribers."
            )

    def _check_rights(self, connection: Connection) -> None:
        """Raise ``SinkRefused`` where what is written could not be removed again."""
        for table in self._system:
            if oid_of(connection, table.name) is not None:
                may = connection.execute("SELECT has_table_privilege(%s, 'DELETE')", (table.name.sql,)).fetchone()
                if may is None or not may[0]:
                    raise SinkRefused(f"{self._like} cannot be probed: grant DELETE on {table.name} to our role first.")

    def _check_ours(self, connection: Connection, oid: int) -> None:
        row = connection.execute("SELECT obj_description(%s::oid, 'pg_class')", (oid,)).fetchone()
        if row is None or row[0] != self._comment:
            raise SinkRefused(f"{self._name} was not made by a probe: it is not dropped.")

    @property
    def _comment(self) -> str:
        return write_probe_comment(self._like)
