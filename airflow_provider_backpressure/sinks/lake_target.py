"""A table of files as a sink, opened: what the formats have in common."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from airflow_provider_backpressure.core.bounds import Bounds
from airflow_provider_backpressure.core.config import Mode
from airflow_provider_backpressure.core.messages import Column, Window, WriteSpec
from airflow_provider_backpressure.core.ports import Marker
from airflow_provider_backpressure.core.snapshot import Plan
from airflow_provider_backpressure.exceptions import PlanSuperseded, SinkRefused
from airflow_provider_backpressure.lakes.marks import Mark
from airflow_provider_backpressure.lakes.table import LakeTable, query_of
from airflow_provider_backpressure.lakes.types import arrow_schema
from airflow_provider_backpressure.sinks.lake_fit import check_columns, check_mode


class LakeTarget:
    """Implements :class:`..core.ports.Sink` for a kind of table of files.

    Attempts hold no connection that could be ended: the fence in the table is what refuses them.
    """

    def __init__(
        self,
        table: LakeTable,
        *,
        kind: str,
        address: str,
        conn_id: str,
        modules: tuple[str, ...],
        key: tuple[str, ...] | None = None,
    ) -> None:
        self._table = table
        self._kind = kind
        self._address = address
        self._conn_id = conn_id
        self._key = key
        self._slices: dict[str, Mark] = {}
        self._apart = True
        self.modules = modules
        self.identity = table.identity

    def fit(self, columns: Sequence[Column], *, mode: str, key: Sequence[str]) -> WriteSpec:
        """See :meth:`..core.ports.Sink.fit`. Under ``upsert`` the sink's own key goes before the source's."""
        wanted = Mode(mode)
        by = tuple(self._key or key) if wanted is Mode.UPSERT else ()
        check_mode(self._table, wanted, by, columns)
        with self._table.translated():
            schema = arrow_schema(columns)
            self._table.check(schema)
            check_columns(self._table.name, self._table.schema(), self._table.stored(schema))
        return WriteSpec(
            kind=self._kind,
            conn_id=self._conn_id,
            target=self._table.name,
            columns=tuple(columns),
            mode=wanted.value,
            key=by,
            plan_table=self._address,
            commit_table="",
            fence=self._table.name,
        )

    def prepare(self, write: WriteSpec) -> None:
        """See :meth:`..core.ports.Sink.prepare`."""
        with self._table.translated():
            self._table.create(arrow_schema(write.columns))

    def holds_rows(self) -> bool:
        """See :meth:`..core.ports.Sink.holds_rows`."""
        with self._table.translated():
            return self._table.holds_rows()

    def begin(self, plan: Plan, *, clear: str | None = None) -> int:
        """See :meth:`..core.ports.Sink.begin`."""
        with self._table.translated():
            return self._table.begin(plan, clear=clear if plan.mode is Mode.APPEND else None)

    def renew(self, plan_id: str) -> int | None:
        """See :meth:`..core.ports.Sink.renew`."""
        with self._table.translated():
            return self._table.renew(plan_id)

    def epoch(self, plan_id: str) -> int | None:
        """See :meth:`..core.ports.Sink.epoch`."""
        with self._table.translated():
            holder = self._table.holder()
        return holder.epoch if holder is not None and holder.plan_id == plan_id else None

    def markers(self, plan_id: str, slice_ids: Sequence[str] | None = None) -> dict[str, Marker]:
        """See :meth:`..core.ports.Sink.markers`."""
        with self._table.translated():
            return {key: mark.marker() for key, mark in self._table.marks(plan_id, slice_ids).items()}

    def end_attempts(self, plan_id: str, slice_id: str) -> int:
        """See :meth:`..core.ports.Sink.end_attempts`: there is nothing to end."""
        return 0

    def rows_in_flight(self, plan_id: str) -> dict[str, int]:
        """See :meth:`..core.ports.Sink.rows_in_flight`: not known of files that grow."""
        return {}

    def slice_query(self, write: WriteSpec, bounds: Bounds | None, window: Window | None = None) -> str:
        """See :meth:`..core.ports.Sink.slice_query`: the files of the slice with these bounds, or of the whole plan.

        ``SinkRefused`` for bounds where rows no longer lie in the files they came in: after a merge by key, or where
        somebody has compacted the table. As a whole it can be compared then.
        """
        with self._table.translated():
            if write.mode == Mode.APPEND:
                self._learn(bounds)
                files = [name for mark in self._slices.values() for name in mark.files]
                if self._apart:
                    return self._query(write, files if bounds is None else self._files(bounds), None)
        if bounds is not None:
            raise SinkRefused(f"Rows of {self._table.name} no longer lie in the files that their ranges came in.")
        return self._query(write, None, window)

    def complete(self, plan: Plan) -> None:
        """See :meth:`..core.ports.Sink.complete`. What dead attempts have left behind is deleted."""
        with self._table.translated():
            self._table.tidy(plan.plan_id)

    def publish(self, plan: Plan) -> None:
        """See :meth:`..core.ports.Sink.publish`: there is no ``replace`` here."""

    def discard(self, plan: Plan, slice_id: str, bounds: Bounds) -> int:
        """See :meth:`..core.ports.Sink.discard`: a slice's files go, where its rows lie in files of their own."""
        if self.epoch(plan.plan_id) is None:
            raise PlanSuperseded(f"Plan {plan.plan_id} no longer holds {self._table.name}.")
        with self._table.translated():
            self._slices = {}
            mark = self._table.marks(plan.plan_id, [slice_id]).get(slice_id)
            return mark.rows if mark is not None and self._table.discard(plan.plan_id, slice_id) else 0

    def close(self) -> None:
        """See :meth:`..core.ports.Sink.close`."""
        self._table.close()

    def _learn(self, bounds: Bounds | None) -> None:
        """Read the marks of the plan that holds the table, unless those asked for are known."""
        if bounds is not None and _text(bounds) in self._slices:
            return
        holder = self._table.holder()
        marks = self._table.marks(holder.plan_id) if holder is not None else {}
        self._slices = {json.dumps(dict(mark.bounds), sort_keys=True): mark for mark in marks.values()}
        self._apart = self._table.current([name for mark in marks.values() if mark.rows for name in mark.files])

    def _files(self, bounds: Bounds) -> list[str]:
        mark = self._slices.get(_text(bounds))
        return [] if mark is None else list(mark.files)

    def _query(self, write: WriteSpec, files: Sequence[str] | None, window: Window | None) -> str:
        return query_of(
            self._address,
            files,
            columns=[asdict(column) for column in write.columns],
            window=asdict(window) if window else None,
        )


def _text(bounds: Bounds) -> str:
    return json.dumps(bounds.to_json(), sort_keys=True)
