"""PostgreSQL's log as several tables share it: one slot and one publication, which tables join and leave.

Positions of the shared log carry the mark of the publication. A table's own position, from which on its changes are
shown, carries the mark of the table in it too: so each table is compared by itself, and others may join and leave.
"""

import logging

import psycopg
from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.connect import Connection, Session
from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName
from airflow_provider_backpressure.connectors.postgres.replication_slots import drop_publication, mark_of
from airflow_provider_backpressure.connectors.postgres.source.change_log import RESTART, PostgresLog, make_log_query
from airflow_provider_backpressure.connectors.relational.errors import where
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.poll_policy import Clock
from airflow_provider_backpressure.core.snapshot.bounds import LogBounds, LogPosition
from airflow_provider_backpressure.exceptions import InvalidDeclaration, LogLost, SourceRefused

log = logging.getLogger(__name__)


JOINS = {14: 140018, 15: 150013, 16: 160009, 17: 170005}
"""The first release of each line that decodes transactions that were open when a table joined. Others may leave out
changes that are committed after them."""


class SharedLog(PostgresLog):
    """The log of a stream. It begins with tables, and others join it later."""

    def _publish(self) -> None:
        """Make a publication in the place of an earlier one; one that an administrator has made stays.

        A table that cannot be published is left out here, and refused by its name when it is planned itself.
        """
        owned = self._session.rows(_OWNED, (self.stream,))
        if owned and not owned[0][0]:
            return
        statement = self._statement()
        if not self._session.value(_MAY_CREATE):
            raise SourceRefused(
                f"{self._session.endpoint.user} may not create a publication in {where(self._session.endpoint)}, which "
                f"takes the CREATE right on the database: let such a role run {statement.as_string(None)}"
            )

        def make(connection: Connection) -> None:
            drop_publication(connection, self.stream)
            connection.execute(statement)

        self._session.transaction(make)
        for table in self._tables:
            try:
                join(self._session, self.stream, table)
            except SourceRefused as error:
                log.warning("%s does not share the log of %s: %s", table, self.stream, error)

    def _statement(self) -> sql.Composed:
        return self._statement_for(())

    def _publication(self) -> str:
        rows = self._session.rows(_MARKED, (self.stream,))
        if not rows:
            at = f"in {where(self._session.endpoint)}"
            raise LogLost(f"The publication {self.stream} {at} is gone, and with it what shows the log: {RESTART}.")
        return str(rows[0][0])

    @property
    def _label(self) -> str:
        return f"the tables of {self.stream}"


class SharedTableLog(PostgresLog):
    """Implements :class:`..core.ports.SharedTableLog`: a table's part of a log that several share."""

    def __init__(
        self,
        endpoint: Endpoint,
        table: QualifiedName,
        stream: str,
        *,
        most: int | None = None,
        restarts: bool = False,
        clock: Clock | None = None,
    ) -> None:
        """See :class:`PostgresLog`. ``stream``: the id of the stream's hydration."""
        super().__init__(endpoint, table, stream, most=most, restarts=restarts, clock=clock)
        self._table = table
        self.query = make_log_query(self.stream, table)

    def begin(self) -> LogPosition:
        """Join the log, and return from where on it shows every change of the table.

        Transactions that were open when the table joined are over then: their earlier changes are not shown, and every
        read that begins after this call sees them. The slot stays as it is.
        """
        self._there("what the tables that share it have changed", "that was not replayed yet")
        if self._table not in self._find_published():
            self._check_joining()
            join(self._session, self.stream, self._table)
        mark = self._publication()
        flushed = self._there("what was not replayed yet", "that was not replayed yet").flushed
        self._await_older()
        log.info("%s shares the slot %s from %s on.", self._table, self.stream, flushed.text)
        return self._with_mark(flushed, mark)

    def check(self, position: LogPosition) -> None:
        """See :meth:`..core.ports.SharedTableLog.check`."""
        if mark_of(position)[0] != self._publication():
            raise LogLost(
                f"{self._table} was taken out of the publication {self.stream} in {where(self._session.endpoint)} for "
                f"a while, or that was created again, so the log may lack changes of it: {RESTART}."
            )

    def windows(
        self, start: LogPosition, *, bytes: int, goal: LogPosition | None = None, large: bool = False
    ) -> list[LogBounds]:
        """Refuse: windows are of all tables."""
        raise InvalidDeclaration(
            f"{self._table} shares the log of {self.stream}, which is replayed for all its tables."
        )

    def release(self, upto: LogPosition) -> None:
        """Do nothing: other tables may need it."""

    def drop(self) -> None:
        """Leave the log; other tables keep it. Nothing where the table is not in it, or the role may not alter it."""
        self._session.transaction(lambda connection: _leave(connection, self.stream, self._table))

    def _give_up(self) -> None:
        """Do nothing: the log is that of other tables too."""

    def _check_joining(self) -> None:
        """Raise ``SourceRefused`` where the server has an error by which it would leave out changes of a new table."""
        version = self._session.server_version
        fixed = JOINS.get(version // 10_000, 0)
        if version < fixed:
            at = where(self._session.endpoint)
            raise SourceRefused(
                f"{self._table} cannot join the log of {self.stream} in {at}: before release {fixed // 10_000}."
                f"{fixed % 10_000} the server leaves out changes of a table that joins a log while others write into "
                'it. Update the server, or trigger the DAG with {"backpressure": "restart"} to read all tables again.'
            )


def join(session: Session, stream: str, table: QualifiedName) -> None:
    """Publish a table as a whole in a log that is shared; ``SourceRefused`` with the statement if we may not."""
    statement = sql.SQL("ALTER PUBLICATION {} ADD TABLE ONLY {}").format(sql.Identifier(stream), sql.SQL(table.sql))

    def add(connection: Connection) -> None:
        # It may be there in part, or from an earlier try whose answer was lost.
        _leave(connection, stream, table)
        connection.execute(statement)

    try:
        session.transaction(add)
    except SourceRefused as error:
        if not isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
            raise
        raise SourceRefused(
            f"{session.endpoint.user} may not publish {table}, which takes its owner and that of the publication: let "
            f"such a role run {statement.as_string(None)}"
        ) from error


def _leave(connection: Connection, stream: str, table: QualifiedName) -> None:
    # A row without columns is an empty tuple.
    if connection.execute(_MAY_LEAVE, (stream, table.schema, table.name)).fetchone() is not None:
        leave = sql.SQL("ALTER PUBLICATION {} DROP TABLE ONLY {}")
        connection.execute(leave.format(sql.Identifier(stream), sql.SQL(table.sql)))


_OWNED = sql.SQL("SELECT pg_has_role(pubowner, 'USAGE') FROM pg_publication WHERE pubname = %s")
_MAY_CREATE = sql.SQL("SELECT has_database_privilege(current_database(), 'CREATE')")
_MARKED = sql.SQL(
    """
    SELECT concat_ws('.', oid, xmin) FROM pg_publication
    WHERE pubname = %s AND pubinsert AND pubupdate AND pubdelete AND pubtruncate
    """
)
# Without the conditions of what is published as a whole: a table that is published in part leaves too.
_MAY_LEAVE = sql.SQL(
    """
    SELECT FROM pg_publication p
    JOIN pg_publication_rel r ON r.prpubid = p.oid
    JOIN pg_class c ON c.oid = r.prrelid
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE p.pubname = %s AND n.nspname = %s AND c.relname = %s AND pg_has_role(p.pubowner, 'USAGE')
    """
)
