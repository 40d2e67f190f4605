"""A table of files that one of our hydrations has landed, opened as a source: no question goes to its upstream."""

import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cached_property

from airflow_provider_backpressure.connectors.lake.base_table import KINDS, LakeTable, open_table
from airflow_provider_backpressure.connectors.lake.row_versions import version_columns
from airflow_provider_backpressure.connectors.lake.visible_files import Content, ContentVersion, Landed
from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.health_signal_declarations import Watched
from airflow_provider_backpressure.core.ports import ChangeLog, Health, Keeper, Unread
from airflow_provider_backpressure.core.ports.sink import Sink
from airflow_provider_backpressure.core.progress.source_position import Unit, Upstream
from airflow_provider_backpressure.core.reconciliation.ranges_from_markers import Rebuilt
from airflow_provider_backpressure.core.snapshot.bounds import Bounds, FileBounds, Values
from airflow_provider_backpressure.core.snapshot.plan import LANDED, Plan, Snapshot
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange
from airflow_provider_backpressure.core.snapshot.spark_messages import ReadSpec, Slice, Window
from airflow_provider_backpressure.exceptions import (
    RESTART,
    SinkRefused,
    SinkUnavailable,
    SourceRefused,
    SourceUnavailable,
)

MOST_FILES = 256
"""Files of a range, so that the ledger and the message to a task hold their names."""


class LandedTable:
    """Implements :class:`..core.ports.Source` over the files that readers of the table see."""

    increments = False
    increment_column: str | None = None

    def __init__(self, sink: Sink, *, endpoint: Endpoint, conn_id: str) -> None:
        self._sink = sink
        self._endpoint = endpoint
        self._conn_id = conn_id
        self.modules = sink.modules
        self.identity = f"landed:{sink.identity}"
        self._seen: Content | None = None

    def snapshot(
        self,
        consistency: Consistency | None = None,
        *,
        after: str | None = None,
        previous: Window | None = None,
        counted: bool = True,
    ) -> Snapshot:
        """See :meth:`..core.ports.Source.snapshot`. ``SourceRefused`` unless the whole of a plan has been landed.

        ``after``: a version that was read, which is also the answer's where the table still holds the rows of it.
        """
        plan = self._plan
        with self._table() as table:
            self._check_columns(table)
            content = table.content()
            version = _version(table, content.version, after)
        self._seen, rows = content, content.rows
        return Snapshot(
            source_identity=self.identity,
            columns=plan.write.columns,
            key=plan.write.key,
            split=(),
            unique=True,
            frontier={self._sink.identity: rows},
            total=rows,
            total_exact=True,
            row_bytes=content.bytes / rows if rows else 1.0,
            consistency=Consistency.STATIC,
            versions=version_columns(plan),
            version=version,
        )

    def ranges(self, snapshot: Snapshot, *, rows: int, bytes: int) -> Iterator[PlannedRange]:
        """See :meth:`..core.ports.Source.ranges`. Small files go together; one that is larger than that is not cut.

        They are the files of the last snapshot that was asked for here: the version that the plan keeps is theirs.
        """
        held: list[Landed] = []
        seq = 0
        for each in (self._seen or self._content()).files:
            larger = [*held, each]
            if held and (_rows(larger) > rows or _bytes(larger) > bytes or _files(larger) > MOST_FILES):
                yield _range(seq, held)
                seq, larger = seq + 1, [each]
            held = larger
        if held:
            yield _range(seq, held)

    def cut(self, read: ReadSpec, bounds: Bounds, *, parts: int) -> Sequence[Bounds]:
        """See :meth:`..core.ports.Source.cut`. What files hold together was written, and is checked, together."""
        return [bounds]

    def in_order(self, read: ReadSpec, columns: Sequence[str], values: Sequence[Values]) -> list[Values]:
        """See :meth:`..core.ports.Source.in_order`. Files are not cut by a key."""
        raise SourceRefused(f"{self.identity} is read by files, not by a key.")

    def keep(self, plan: Plan) -> Keeper:
        """See :meth:`..core.ports.Source.keep`. Files need none."""
        raise SourceRefused("Landed files never change, so they need no snapshot.")

    def read_spec(self, snapshot: Snapshot) -> ReadSpec:
        write = self._plan.write
        return ReadSpec(
            kind=LANDED, conn_id=self._conn_id, columns=snapshot.columns, parts=(write.kind, write.plan_table)
        )

    def slice(self, read: ReadSpec, bounds: Bounds, slice_id: str) -> Slice:
        """See :meth:`..core.ports.Source.slice`. Asks nothing."""
        kind, address = read.parts
        return Slice(slice_id=slice_id, query=json.dumps({"kind": kind, "at": address}), bounds=bounds.to_json())

    def check_range(self, plan: Plan, bounds: Bounds) -> None:
        """See :meth:`..core.ports.Source.check_range`. By the history of the lake and its list of files."""
        assert isinstance(bounds, FileBounds), "a range of files"
        gone = sorted(set(bounds.files).difference(name for each in self._content().files for name in each.files))
        if gone:
            raise SourceRefused(f"{self.identity} no longer has {gone[0]}, which the range was read from; {RESTART}.")

    def log(self, hydration_id: str) -> ChangeLog:
        """See :meth:`..core.ports.Source.log`. Files have none."""
        raise SourceRefused("Landed files have no log to be replayed.")

    def health(self, watched: Sequence[Watched], *, seconds: float, unread: Unread | None = None) -> Health:
        raise SourceRefused(
            f"Files have no server whose {watched[0].kind} could be watched: leave {watched[0].name} out."
        )

    def upstream(self) -> Upstream:
        """See :meth:`..core.ports.Source.upstream`. The rows that are landed; it asks nobody but the lake."""
        return Upstream(unit=Unit.ROWS, at={self._sink.identity: self._content().rows})

    def close(self) -> None:
        self._sink.close()

    @cached_property
    def _plan(self) -> Plan:
        """The plan that landed the rows last; what was landed by plans before it was complete when that one began."""
        try:
            row = self._sink.held()
            if row is None or row.plan is None or row.plan.write.kind not in KINDS:
                raise SourceRefused(
                    f"{self._sink.identity} was not landed by a hydration of this release, so what its files hold is "
                    "not known: hydrate it first."
                )
            self._sink.check_history()
            found = Rebuilt(hydration_id="", plan=row.plan, markers=self._sink.markers(row.plan_id))
        except SinkRefused as error:
            raise SourceRefused(str(error)) from error
        except SinkUnavailable as error:
            raise SourceUnavailable(str(error)) from error
        if not found.complete():
            raise SourceRefused(
                f"{self._sink.identity} does not hold the whole of plan {row.plan_id} yet: {row.committed} ranges of "
                f"{row.plan.ranges} are landed. Let that hydration end first."
            )
        return row.plan

    def _check_columns(self, table: LakeTable) -> None:
        there = table.schema()
        # Of a folder the columns are known by its files alone.
        gone = [each.name for each in self._plan.write.columns if there is not None and each.name not in there.names]
        if gone:
            raise SourceRefused(
                f"{self.identity} no longer has what was landed in {', '.join(gone)}: land the rows again."
            )

    def _content(self) -> Content:
        with self._table() as table:
            return table.content()

    @contextmanager
    def _table(self) -> Iterator[LakeTable]:
        write = self._plan.write
        try:
            with closing(open_table(write.kind, write.plan_table, self._endpoint)) as table, table.translate_errors():
                yield table
        except SinkRefused as error:
            raise SourceRefused(str(error)) from error
        except SinkUnavailable as error:
            raise SourceUnavailable(str(error)) from error


def _version(table: LakeTable, now: ContentVersion, before: str | None) -> str:
    """Return the version of what a table holds: the one of before where that is of the same rows."""
    if before is not None:
        earlier = ContentVersion.from_json(before)
        if earlier.has_same_files(now) or table.is_rearranged(earlier):
            return before
    return now.to_json()


def _range(seq: int, held: Sequence[Landed]) -> PlannedRange:
    bounds = FileBounds(
        files=tuple(name for each in held for name in each.files),
        rows=_rows(held),
        checksum=_checksum([each.checksum for each in held]),
    )
    return PlannedRange(seq=seq, bounds=bounds, rows=_rows(held), bytes=_bytes(held))


def _files(held: Sequence[Landed]) -> int:
    return sum(len(each.files) for each in held)


def _rows(held: Sequence[Landed]) -> int:
    return sum(each.rows for each in held)


def _bytes(held: Sequence[Landed]) -> int:
    return sum(each.bytes for each in held)


def _checksum(found: Sequence[str]) -> str:
    """Return the sum of checksums, as the rows together have it; empty where one is not known."""
    if not all(found):
        return ""
    name = found[0].rpartition(":")[0]
    total = sum(int(each.rpartition(":")[2], 16) for each in found) % 2**64
    return f"{name}:{total:016x}"
