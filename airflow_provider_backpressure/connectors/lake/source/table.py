"""A table of files that one of our hydrations has landed, opened as a source: no question goes to its upstream."""

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cached_property

from airflow_provider_backpressure.connectors.lake.markers import Landed
from airflow_provider_backpressure.connectors.lake.table import KINDS, open_table
from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.health_signals import Watched
from airflow_provider_backpressure.core.ports import ChangeLog, Health, Keeper, Sink, Unread
from airflow_provider_backpressure.core.progress.source_position import Unit, Upstream
from airflow_provider_backpressure.core.reconciliation.rebuild import Rebuilt
from airflow_provider_backpressure.core.snapshot.bounds import Bounds, FileBounds, Values
from airflow_provider_backpressure.core.snapshot.messages import ReadSpec, Slice
from airflow_provider_backpressure.core.snapshot.plan import LANDED, Plan, Snapshot
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange
from airflow_provider_backpressure.exceptions import SinkRefused, SinkUnavailable, SourceRefused, SourceUnavailable


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

    def snapshot(
        self, consistency: Consistency | None = None, *, after: str | None = None, counted: bool = True
    ) -> Snapshot:
        """See :meth:`..core.ports.Source.snapshot`. ``SourceRefused`` unless the whole of a plan has been landed."""
        plan, landed = self._plan, self._landed()
        rows, size = sum(each.rows for each in landed), sum(each.bytes for each in landed)
        return Snapshot(
            source_identity=self.identity,
            columns=plan.write.columns,
            key=plan.write.key,
            split=(),
            unique=True,
            frontier={self._sink.identity: rows},
            total=rows,
            total_exact=True,
            row_bytes=size / rows if rows else 1.0,
            consistency=Consistency.STATIC,
        )

    def ranges(self, snapshot: Snapshot, *, rows: int, bytes: int) -> Iterator[PlannedRange]:
        """See :meth:`..core.ports.Source.ranges`. Small files go together; one that is larger than that is not cut."""
        held: list[Landed] = []
        seq = 0
        for each in self._landed():
            if held and (_rows(held) + each.rows > rows or _bytes(held) + each.bytes > bytes):
                yield _range(seq, held)
                seq, held = seq + 1, []
            held.append(each)
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
        """See :meth:`..core.ports.Source.read_spec`."""
        write = self._plan.write
        return ReadSpec(
            kind=LANDED, conn_id=self._conn_id, columns=snapshot.columns, parts=(write.kind, write.plan_table)
        )

    def slice(self, read: ReadSpec, bounds: Bounds, slice_id: str) -> Slice:
        """See :meth:`..core.ports.Source.slice`. Asks nothing."""
        kind, address = read.parts
        return Slice(slice_id=slice_id, query=json.dumps({"kind": kind, "at": address}), bounds=bounds.to_json())

    def log(self, hydration_id: str) -> ChangeLog:
        """See :meth:`..core.ports.Source.log`. Files have none."""
        raise SourceRefused("Landed files have no log to be replayed.")

    def health(self, watched: Sequence[Watched], *, seconds: float, unread: Unread | None = None) -> Health:
        """See :meth:`..core.ports.Source.health`."""
        raise SourceRefused(
            f"Files have no server whose {watched[0].kind} could be watched: leave {watched[0].name} out."
        )

    def upstream(self) -> Upstream:
        """See :meth:`..core.ports.Source.upstream`. The rows that are landed; it asks nobody but the lake."""
        rows = sum(each.rows for each in self._landed())
        return Upstream(unit=Unit.ROWS, at={self._sink.identity: rows})

    def close(self) -> None:
        """See :meth:`..core.ports.Source.close`."""
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

    def _landed(self) -> list[Landed]:
        write = self._plan.write
        try:
            with closing(open_table(write.kind, write.plan_table, self._endpoint)) as table, table.translated():
                return [each for each in table.landed() if each.rows]
        except SinkRefused as error:
            raise SourceRefused(str(error)) from error
        except SinkUnavailable as error:
            raise SourceUnavailable(str(error)) from error


def _range(seq: int, held: Sequence[Landed]) -> PlannedRange:
    bounds = FileBounds(
        files=tuple(name for each in held for name in each.files),
        rows=_rows(held),
        checksum=_checksum([each.checksum for each in held]),
    )
    return PlannedRange(seq=seq, bounds=bounds, rows=_rows(held), bytes=_bytes(held))


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
