"""A table of files as a sink, opened: what the formats have in common."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

import pyarrow

from airflow_provider_backpressure.connectors.lake.base_table import LakeTable, query_of
from airflow_provider_backpressure.connectors.lake.markers import Holder, Mark
from airflow_provider_backpressure.connectors.lake.row_versions import inherit_versions
from airflow_provider_backpressure.connectors.lake.sink.target_base import FilesTarget, check_key, check_window
from airflow_provider_backpressure.connectors.lake.tasks import quarantine as beside_it
from airflow_provider_backpressure.core.capacity.saturation_curve import SCRATCH, format_suffix
from airflow_provider_backpressure.core.config import Log, Mode
from airflow_provider_backpressure.core.ports.sink import Marker, MirrorTarget, PlanRow, ScratchSink
from airflow_provider_backpressure.core.snapshot.bounds import Bounds
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, Window, WriteSpec
from airflow_provider_backpressure.core.stage_metrics import Flow, flow_of
from airflow_provider_backpressure.exceptions import RESTART, PlanSuperseded, SinkRefused
from airflow_provider_backpressure.spark.column_types import arrow_schema


def check_mode(table: LakeTable, mode: Mode, key: Sequence[str], columns: Sequence[Column]) -> None:
    """Raise ``SinkRefused`` for a mode that the format does not have, or a key that does not arrive."""
    if mode is Mode.REPLACE:
        others = "use append into an empty table, or upsert" if table.merges else "use append into an empty folder"
        raise SinkRefused(f"{table.name} cannot be replaced at once: {others}.")
    if mode is not Mode.UPSERT:
        return
    if not table.merges:
        raise SinkRefused(f"{table.name} has no rows that a key could identify: Parquet files take append only.")
    check_key(table.name, key, columns)


def check_columns(name: str, there: pyarrow.Schema | None, arriving: pyarrow.Schema) -> None:
    """Raise ``SinkRefused`` unless an existing table has exactly the columns that arrive, of the same types.

    It names all that do not fit at once.
    """
    if there is None:
        return
    extra = sorted(set(there.names) - set(arriving.names))
    missing = sorted(set(arriving.names) - set(there.names))
    against = [f"it has no column {', '.join(missing)}"] if missing else []
    if extra:
        against.append(f"{', '.join(extra)} of the table does not arrive")
    for field in arriving:
        if field.name in missing:
            continue
        other = there.field(field.name)
        if other.type != field.type:
            against.append(f"column {field.name} arrives as {field.type} and is {other.type} in the table")
        elif field.nullable and not other.nullable:
            against.append(f"column {field.name} takes no NULL in the table, and may be NULL in the source")
    if against:
        raise SinkRefused(f"Rows cannot go into {name}: {'; '.join(against)}.")


_NAMED = 3
"""Most files that a sentence names."""


class LakeTarget(FilesTarget):
    """Implements :class:`..core.ports.Sink` for a kind of table of files.

    Attempts hold no connection that could be ended: the fence in the table is what refuses them. ``beside`` opens the
    table whose name ends so, behind the name of this one. ``aside`` takes up to ``most_bad`` rows of a plan that this
    one cannot; no commit spans both, so each has the plan and the slices' marks by itself.
    """

    def __init__(
        self,
        table: LakeTable,
        *,
        kind: str,
        address: str,
        conn_id: str,
        modes: tuple[Mode, ...],
        modules: tuple[str, ...],
        beside: Callable[[str], "LakeTarget"],
        key: tuple[str, ...] | None = None,
        aside: LakeTable | None = None,
        most_bad: int = 0,
    ) -> None:
        self._table = table
        self._kind = kind
        self._address = address
        self._conn_id = conn_id
        self._key = key
        self._beside = beside
        self._aside = aside
        self._most_bad = most_bad
        self._slices: dict[str, Mark] = {}
        self._apart = True
        self.modules = modules
        self.modes = modes
        self.identity = table.identity

    def fit(self, columns: Sequence[Column], *, mode: str, key: Sequence[str], log: Log | None = None) -> WriteSpec:
        """See :meth:`..core.ports.Sink.fit`. Under ``upsert`` the sink's own key goes before the source's."""
        wanted = Mode(mode)
        by = tuple(self._key or key) if wanted is Mode.UPSERT else ()
        check_mode(self._table, wanted, by, columns)
        with self._table.translate_errors():
            schema = arrow_schema(columns)
            self._table.check(schema)
            check_columns(self._table.name, self._table.schema(), self._table.to_stored_schema(schema))
            if self._aside is not None:
                kept = arrow_schema(beside_it.COLUMNS)
                check_columns(self._aside.name, self._aside.schema(), self._aside.to_stored_schema(kept))
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
            quarantine=self._aside.name if self._aside is not None else None,
            most_bad=self._most_bad,
            frontier_table=self._table.name if self._table.merges else "",
        )

    def widen(self, columns: Sequence[Column]) -> None:
        """See :meth:`..core.ports.Sink.widen`. All of them or none; ``SinkRefused`` where one is there with values."""
        with self._table.translate_errors():
            there = self._table.schema()
            if there is None:
                return
            schema = self._table.to_stored_schema(arrow_schema(columns))
            added = [field.with_nullable(True) for field in schema if field.name not in there.names]
            self._table.check(pyarrow.schema([*there, *added]))
            self._check_empty([name for name in schema.names if name in there.names])
            if added:
                self._table.add_columns(added)
                # Files may hold the values of a column of that name that somebody has dropped.
                self._check_empty([field.name for field in added])

    def _check_empty(self, names: Sequence[str]) -> None:
        """Raise ``SinkRefused`` where one of these columns has a value: the source has NULL in these rows."""
        filled = (
            name
            for batch in (self._table.read(None, names) if names else ())
            for name in names
            if batch.column(name).null_count < batch.num_rows
        )
        if (name := next(filled, None)) is not None:
            raise SinkRefused(
                f"{self._table.name} has a column {name} already, with values in rows that were committed before the "
                f"source had it: {RESTART}, or land the rows in another table."
            )

    def prepare(self, write: WriteSpec) -> None:
        with self._table.translate_errors():
            self._table.create(arrow_schema(write.columns))
            if self._aside is not None:
                self._aside.create(arrow_schema(beside_it.COLUMNS))

    def holds_rows(self) -> bool:
        with self._table.translate_errors():
            return self._table.holds_rows()

    def begin(self, plan: Plan, *, clear: str | None = None) -> int:
        with self._table.translate_errors():
            if self._aside is not None:
                Holder.check_turn(self._table.holder(), plan)
                # It follows no other plan: it may be asked for with any of them.
                self._aside.begin(replace(plan, read=replace(plan.read, window=None), held_by=None), clear=None)
            clear = clear if plan.mode is Mode.APPEND else None
            return self._table.begin(inherit_versions(self._table, plan, clear=clear), clear=clear)

    def renew(self, plan_id: str) -> int | None:
        with self._table.translate_errors():
            return self._table.renew(plan_id)

    def find_holder(self) -> Holder | None:
        with self._table.translate_errors():
            return self._table.holder()

    def held(self) -> PlanRow | None:
        with self._table.translate_errors():
            holder = self._table.holder()
            return None if holder is None else holder.row(committed=self._table.count_committed(holder.plan_id))

    def markers(self, plan_id: str, slice_ids: Sequence[str] | None = None) -> dict[str, Marker]:
        with self._table.translate_errors():
            return {key: mark.marker() for key, mark in self._table.marks(plan_id, slice_ids).items()}

    def read_times(self, plan_id: str, slice_ids: Sequence[str]) -> dict[str, Flow]:
        """See :meth:`..core.ports.sink.KeepsTimes.read_times`."""
        with self._table.translate_errors():
            found = {each: self._table.notes().times(plan_id, each) for each in slice_ids}
        # Where a file is not put in its place at once, half of one may be read.
        return {each: flow_of(json.loads(text)) for each, text in found.items() if text and text.endswith("}")}

    def slice_query(self, write: WriteSpec, bounds: Bounds | None, window: Window | None = None) -> str:
        """See :meth:`..core.ports.Sink.slice_query`: the files of the slice with these bounds, or of the whole plan.

        ``SinkRefused`` for bounds where rows no longer lie in the files they came in: after a merge by key, or where
        somebody has compacted the table. As a whole it can be compared then.
        """
        with self._table.translate_errors():
            if write.mode == Mode.APPEND:
                self._learn(bounds)
                files = [name for mark in self._slices.values() for name in mark.files]
                if self._apart:
                    return self._query(write, files if bounds is None else self._files(bounds), None)
        if bounds is not None:
            raise SinkRefused(f"Rows of {self._table.name} no longer lie in the files that their ranges came in.")
        return self._query(write, None, window)

    def find_surplus(self, plan: Plan) -> str:
        """See :meth:`..core.ports.Sink.find_surplus`: files that no mark explains.

        Where somebody has compacted the table there are none that any could explain, and it is compared as a whole.
        """
        if plan.mode is not Mode.APPEND:
            return ""
        with self._table.translate_errors():
            self._learn(None)
            found = self._table.find_strangers(plan.plan_id, alone=not plan.increment) if self._apart else []
        if not found:
            return ""
        named = ", ".join(found[:_NAMED]) + (" and others" if len(found) > _NAMED else "")
        return (
            f"{self._table.name} holds rows that no plan has written, in {named}: remove them, or empty the table and "
            "plan again"
        )

    def read_quarantine(self, plan: Plan, slice_id: str) -> tuple[str, ...]:
        """See :meth:`..core.ports.Sink.read_quarantine`."""
        if self._aside is None:
            return ()
        with self._table.translate_errors():
            mark = self._aside.marks(plan.plan_id, [slice_id]).get(slice_id)
            batches = self._aside.read(mark.files) if mark is not None else ()
            return tuple(row for batch in batches for row in batch.column("row").to_pylist())

    def check_history(self) -> None:
        with self._table.translate_errors():
            self._table.check_history()

    def prune(self, plan: Plan, plan_ids: Sequence[str]) -> int:
        """See :meth:`..core.ports.Sink.prune`. What the table's own log keeps of a slice stays there."""
        gone = [each for each in plan_ids if each not in (plan.plan_id, plan.held_by)]
        with self._table.translate_errors():
            holder = self._table.holder()
            if holder is None:
                raise PlanSuperseded(f"Plan {plan.plan_id} no longer holds {self._table.name}.")
            holder.check_plan(plan.plan_id, self._table.name)
            return self._table.prune(gone, below=holder.epoch)

    def complete(self, plan: Plan) -> None:
        """See :meth:`..core.ports.Sink.complete`. What dead attempts have left behind is deleted."""
        with self._table.translate_errors():
            self._table.tidy(plan.plan_id)
            if self._aside is not None:
                self._aside.tidy(plan.plan_id)

    def discard(self, plan: Plan, slice_id: str, bounds: Bounds) -> int:
        """See :meth:`..core.ports.Sink.discard`: a slice's files go, where its rows lie in files of their own."""
        if self.epoch(plan.plan_id) is None:
            raise PlanSuperseded(f"Plan {plan.plan_id} no longer holds {self._table.name}.")
        with self._table.translate_errors():
            self._slices = {}
            mark = self._table.marks(plan.plan_id, [slice_id]).get(slice_id)
            if mark is not None and mark.quarantined:
                if self._aside is None:
                    raise SinkRefused(
                        f"{mark.quarantined} rows of this range are kept beside {self._table.name}: declare "
                        "quarantine= on the sink again, so that they can be removed with it."
                    )
                self._aside.discard(plan.plan_id, slice_id)
            return mark.rows if mark is not None and self._table.discard(plan.plan_id, slice_id) else 0

    def revoke(self, plan: Plan, slice_id: str, bounds: Bounds) -> bool:
        """See :meth:`..core.ports.Sink.revoke`: a mark belongs to files here, so there is none that only refuses."""
        raise SinkRefused(
            f"{self._table.name} cannot refuse a range that was begun already: retry it, or plan again with "
            '{"backpressure": "restart"}.'
        )

    def scratch(self, digits: str, *, indexes: bool = True) -> ScratchSink:
        """See :meth:`..core.ports.Sink.scratch`: a table of files has no indexes."""
        return self._beside(format_suffix(digits))

    def drop(self, plan_id: str) -> None:
        """See :meth:`..core.ports.ScratchSink.drop`. A table that was made and not begun yet holds no rows."""
        with self._table.translate_errors():
            holder = self._table.holder()
            if holder is None and self._table.schema() is None:
                return
            ours = not self._table.holds_rows() if holder is None else holder.plan_id == plan_id
            if not ours or SCRATCH.search(self._table.name) is None:
                raise SinkRefused(f"{self._table.name} is not what the probe {plan_id} made: it is not dropped.")
            if self._aside is not None:
                self._aside.remove()
            self._table.remove()

    def mirror(self, write: WriteSpec | None = None) -> MirrorTarget:
        raise SinkRefused(f"{self._table.name} cannot be mirrored: a commit does not exchange the rows of a range.")

    def traces(self) -> tuple[str, ...]:
        """See :meth:`..core.ports.Sink.traces`. The table of what was put aside is one, however many rows it has."""
        with self._table.translate_errors():
            aside = self._aside is not None and self._aside.schema() is not None
            return (*self._table.traces(), *([f"{self._aside.name}: rows put aside"] if aside and self._aside else ()))

    def erase(self) -> None:
        with self._table.translate_errors():
            if self._aside is not None:
                self._aside.remove()
            self._table.erase()

    def close(self) -> None:
        self._table.close()
        if self._aside is not None:
            self._aside.close()

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
        check_window(self._table.name, write, window)
        return query_of(
            self._address,
            files,
            columns=[asdict(column) for column in write.columns],
            window=asdict(window) if window else None,
        )


def _text(bounds: Bounds) -> str:
    return json.dumps(bounds.to_json(), sort_keys=True)
