"""A table of PostgreSQL as one snapshot shows it, and its changes in the log that the snapshot sees.

What a snapshot sees is a set of transactions, and no position of the log is its end: a commit can be in the log before
readers see it. So changes are chosen by their transactions. A position behind the snapshot only ends the reading.
"""

import json
import threading
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.errors import Errors
from airflow_provider_backpressure.connectors.postgres.source.snapshot_keeper import SnapshotKeeper
from airflow_provider_backpressure.connectors.postgres.tasks.changes import COMPARING, LogChanges, position
from airflow_provider_backpressure.connectors.relational.errors import where
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.health_signal_declarations import size
from airflow_provider_backpressure.core.snapshot.bounds import LogBounds, LogPosition
from airflow_provider_backpressure.core.snapshot.ranges import attempt_tag
from airflow_provider_backpressure.core.snapshot.spark_messages import ReadSpec
from airflow_provider_backpressure.core.snapshot.table_alterations import TableStorage
from airflow_provider_backpressure.exceptions import SnapshotLost, SourceRefused, SourceUnavailable

ERRORS = Errors(refused=SourceRefused, unavailable=SourceUnavailable)
MOST_BYTES = 32 * 2**30
"""Most log that is read for a comparison: the server decodes all of it before it sends the first change."""
MOST_HOURS = 4
"""How long a snapshot stays of a process that is frozen."""
_turns: defaultdict[tuple[str, str], threading.Lock] = defaultdict(threading.Lock)
"""A slot has one reader, and tables that share it may be compared at once."""


class PostgresMoment:
    """Implements :class:`..core.ports.comparison_snapshots.SourceMoment`."""

    def __init__(self, endpoint: Endpoint, read: ReadSpec, query: str, storage: TableStorage | None) -> None:
        """Take the snapshot. ``query``: whom to ask for the log, and for which table; ``storage``: of before."""
        self.storage = storage
        # This side connects by its own address.
        self._endpoint = replace(endpoint, executor_host=None, executor_port=None)
        # The log is decoded by the columns of now, which it leads up to.
        self._read = replace(read, storage=storage.mark_changed_since(read.storage) if storage else None)
        self._said = json.loads(query)
        self._name = attempt_tag(f"{COMPARING}{uuid.uuid4().hex}", "0.0", 1)
        self._keeper = SnapshotKeeper(endpoint, errors=ERRORS, rows=sql.SQL("SELECT NULL::bigint"))
        self.snapshot = self._keeper.snapshot
        try:
            self._keeper.limit(MOST_HOURS)
            self._seen = self._keeper.read_seen()
            # Behind the snapshot: every commit that it sees begins before this.
            self._upto = LogPosition.parse(position(self._endpoint, self._name))
        except BaseException:
            self._keeper.close()
            raise

    def changes(self, start: LogPosition, key: Sequence[str]) -> Iterator[Sequence[bytes]]:
        """See :meth:`..core.ports.comparison_snapshots.SourceMoment.changes`."""
        if self._upto <= start:
            return
        length = self._upto.at - start.at
        if length > MOST_BYTES:
            raise SourceRefused(
                f"{size(length)} of log were written in {where(self._endpoint)} since the last window, and the server "
                f"would put what it decodes of it on its disk at once: more than {size(MOST_BYTES)} are not read to "
                "compare a table. Let its hydrate_ranges task run first."
            )
        slot = self._said["slot"]
        bounds = LogBounds(stream=slot, start=start, end=self._upto)
        found = LogChanges(self._endpoint, self._read, bounds, self._said, key, self._name)
        found.seen = self._seen
        with _turns[self._endpoint.address, slot]:
            try:
                yield from found
                # Windows may go in meanwhile, and the next ones let the server move the slot past the target's moment.
                found.check_kept()
            except SourceUnavailable as error:
                # Also where a window was waiting for the slot: it goes first.
                raise SnapshotLost(f"The log was not read to its end: {error}") from error

    def close(self) -> None:
        """Let the snapshot go."""
        self._keeper.close()
