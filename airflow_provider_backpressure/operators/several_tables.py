"""The tables of one task: each is a hydration of its own, and one that fails stops alone."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from airflow.sdk import Context

from airflow_provider_backpressure.base_operator import HydrationTask, airflow_errors, failure_of
from airflow_provider_backpressure.connectors.postgres.identifiers import quote_if_needed
from airflow_provider_backpressure.core.gate.hydration_record import Hydration
from airflow_provider_backpressure.core.monitoring.heartbeat import beat_for
from airflow_provider_backpressure.core.monitoring.source_observer import nobodys_error
from airflow_provider_backpressure.core.table_selection import TableName, in_files, match_tables, placeholder, targets
from airflow_provider_backpressure.exceptions import (
    InvalidDeclaration,
    LedgerUnavailable,
    SourceRefused,
    Terminal,
)
from airflow_provider_backpressure.hooks.hydration_session import Declaration, HydrationSession, SharedPorts
from airflow_provider_backpressure.hooks.recorded_declaration import declaration_of
from airflow_provider_backpressure.operators.moved_connections import find_moved, has_same_connections

KEY = "tables"
"""XCom of the planning task: what it has planned, and what it could not."""
GONE = (
    "Most likely it was dropped or renamed, or the login has lost the right to read it. Give the right back, or remove "
    "the hydration with `airflow backpressure forget`."
)
OBSERVED_AFTER = 10.0
"""Seconds after which one of several tables is observed: most of many are done before anything has to be said of them.
"""


class TablePair(NamedTuple):
    """A table and its target, as their databases spell them."""

    table: str
    target: str


def each_target(source: Any, sink: Any, tables: Sequence[TableName]) -> dict[str, str]:
    """Return each table's target by the table, as the sink spells it."""
    spell = quote_if_needed if getattr(sink, "in_sql", False) else in_files
    folds = getattr(sink, "folds_names", False)
    return targets(tables, getattr(sink, placeholder(sink)), spell=spell, folds=folds)


def is_several(source: Any) -> bool:
    """Whether a source has several tables: named, or by a pattern."""
    return bool(getattr(source, "tables", ()))


def parse_pairs(source: Any, sink: Any) -> list[TablePair]:
    """Return the tables that a source names; none where it has a pattern, or one table only."""
    tables = getattr(source, "tables", ())
    if isinstance(tables, str):
        return []
    found = each_target(source, sink, [source.parse_name(table) for table in tables]) if tables else {}
    return [TablePair(table, target) for table, target in found.items()]


def find_pairs(source: Any, sink: Any, endpoint: Any) -> list[TablePair]:
    """Return the tables that a source names, or that its pattern finds now.

    ``SourceRefused`` where a pattern finds none: it is more likely mistyped than meant.
    """
    if not isinstance(source.tables, str):
        return parse_pairs(source, sink)
    found = source.found(endpoint)
    if not found:
        raise SourceRefused(f"No table of {source.conn_id} that its login may read is called {source.tables}.")
    return [TablePair(table, target) for table, target in each_target(source, sink, found).items()]


def run_of(context: Context) -> str:
    """Return the name of the run, which no other run has."""
    return f"{context['ti'].dag_id}/{context['ti'].run_id}"


def read_planner(hydration: Hydration) -> str:
    """Return the run that planned it last together with other tables; empty for any other plan."""
    return "" if hydration.declaration is None else str(json.loads(hydration.declaration).get("run", ""))


@dataclass(frozen=True, kw_only=True)
class PlannedTables:
    """What a planning task leaves for the tasks behind it, in plain values: it travels as JSON."""

    ids: Mapping[TablePair, str] = field(default_factory=dict)
    """Hydrations that it has planned."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Why others could not be planned, by the table."""
    stream: str = ""
    """Id of the hydration whose log tables share; empty: each has its own, or none."""
    sharing: Sequence[TablePair] = ()
    """Those tables, also the ones that could not be planned this time."""

    def to_json(self) -> dict[str, Any]:
        """Return it for XCom."""
        found = {"planned": [[*pair, hydration] for pair, hydration in self.ids.items()], "failed": dict(self.failed)}
        shared = {"stream": self.stream, "sharing": [[*pair] for pair in self.sharing]}
        return {**found, **shared} if self.stream else found

    @classmethod
    def from_json(cls, value: Any) -> "PlannedTables":
        """Return what :meth:`to_json` has written."""
        if not isinstance(value, Mapping):
            raise InvalidDeclaration(
                'A source of several tables needs tables=plan.output["tables"], of the task that plans them.'
            )
        ids = {TablePair(table, target): hydration for table, target, hydration in value["planned"]}
        sharing = [TablePair(*pair) for pair in value.get("sharing", ())]
        return cls(ids=ids, failed=value["failed"], stream=value.get("stream", ""), sharing=sharing)


@dataclass(kw_only=True)
class TableSet:
    """The tables of a task, with what their hydrations share opened."""

    task: HydrationTask
    context: Context
    shared: SharedPorts
    declared: Declaration
    over: frozenset[str] = frozenset()
    """Runs that have held hydrations and are over."""
    retries: bool
    """Whether Airflow tries the task again."""
    heard: set[str] = field(default_factory=set)
    """Hydrations of which the task is heard, also while they wait for others."""

    def declare(self, pair: TablePair) -> Declaration:
        """Return the declaration of one of the tables."""
        source: Any = self.declared.source
        sink: Any = self.declared.sink
        return replace(
            self.declared,
            source=replace(source, table=pair.table, tables=()),
            sink=replace(sink, **{placeholder(sink): pair.target}),
        )

    @contextmanager
    def open(self, pair: TablePair) -> Iterator[HydrationSession]:
        """Open one table; an error of its work is kept with its hydration, where no other try follows."""
        with self.shared.open(self.declare(pair)) as opened:
            try:
                yield opened
            except Exception as error:
                self._keep_failure(opened, error)
                raise

    def expect(self, pairs: Sequence[TablePair]) -> AbstractContextManager[None]:
        """Let the source look up these tables together, where it can."""
        expect = getattr(self.declared.source, "expect", None)
        return nullcontext() if expect is None else expect([pair.table for pair in pairs])

    def find(self, pairs: Sequence[TablePair]) -> dict[TablePair, Hydration]:
        """Return the hydrations of these tables that the ledger has, by one question.

        Also those that the connections led to before, by :func:`.find_moved`.
        """
        hydrations = self.hydrations()
        every = {(found.environment, found.source_identity, found.sink_identity): found for found in hydrations}
        known = {}
        for pair in pairs if every else ():
            with self.shared.open(self.declare(pair)) as opened:
                found = every.get((opened.environment, opened.source.identity, opened.sink.identity))
                if found is None or found.plan is None:
                    found = find_moved(opened, hydrations) or found
            if found is not None:
                known[pair] = found
        return known

    def is_done(self, hydration: Hydration) -> bool:
        """Whether a run has verified it and let it go, and nobody has opened a range of it again since."""
        plan = hydration.plan
        return hydration.holder is None and (plan is None or not self.shared.ledger.counts(plan.plan_id).open)

    def find_gone(self, every: Sequence[TablePair]) -> dict[TablePair, Hydration]:
        """Return the hydrations that the task's pattern had tables for before, and that are not among these now."""
        gone: dict[TablePair, Hydration] = {}
        source: Any = self.declared.source
        if not isinstance(source.tables, str):
            return gone
        there = {pair.table for pair in every}
        for hydration in self.hydrations():
            # What cannot be read by this version is not known to be the pattern's.
            with suppress(InvalidDeclaration):
                if hydration.plan is None or hydration.declaration is None:
                    continue
                kept = declaration_of(hydration)
                if not has_same_connections(kept, self.declared) or kept.source.table in there:
                    continue
                matched = match_tables([source.parse_name(kept.source.table)], source.tables)
                pairs = each_target(source, self.declared.sink, matched).items()
                into = getattr(kept.sink, placeholder(self.declared.sink))
                gone |= {TablePair(*pair): hydration for pair in pairs if pair[1] == into}
        return gone

    def check_gone(self, every: Sequence[TablePair]) -> dict[TablePair, Exception]:
        """Warn of tables that the pattern does not find any more, and return an error for each with open ranges."""
        source: Any = self.declared.source
        gone = self.find_gone(every)
        if gone:
            names = ", ".join(sorted(pair.table for pair in gone))
            words = "%s tables that were planned before are not found by the pattern %s now: %s. %s"
            self.task.log.warning(words, len(gone), source.tables, names, GONE)
        stuck: dict[TablePair, Exception] = {}
        for pair, hydration in gone.items():
            left = self.shared.ledger.counts(hydration.plan.plan_id).open if hydration.plan else 0
            if left:
                words = f"The pattern {source.tables} does not find it any more, and {left} of its ranges are open."
                stuck[pair] = SourceRefused(f"{words} {GONE}")
        return stuck

    def hydrations(self) -> list[Hydration]:
        """Return every hydration of the DAG."""
        return self.shared.ledger.hydrations(owner=self.declared.owner)

    def hold(self, hydration: Hydration) -> None:
        """Take a hydration for this run; ``LedgerUnavailable`` where another run was quicker."""
        ledger, run = self.shared.ledger, self.context["ti"].run_id
        holder = hydration.holder
        if holder != run:
            holder = ledger.hold(hydration.id, run=run)
        if holder in self.over:
            holder = ledger.hold(hydration.id, run=run, over=holder)
        if holder != run:
            raise LedgerUnavailable(f"Run {holder} has this hydration now: a retry takes its turn.")
        self.heard.add(hydration.id)

    def _keep_failure(self, opened: HydrationSession, error: Exception) -> None:
        if self.retries and not isinstance(error, Terminal):
            return
        with nobodys_error("Why the table has failed is not kept"):
            found = opened.find()
            if found is not None and found.holder in (self.context["ti"].run_id, None):
                opened.ledger.keep_failure(found.id, failure_of(error))

    def report(self, pair: TablePair, result: Any) -> None:
        """Write into the log what became of a table."""
        if isinstance(result, Exception):
            self.task.log.error("%s has failed: %s", pair.table, failure_of(result), exc_info=_unknown(result))


def _unknown(error: Exception) -> Exception | None:
    """Return an error whose sentence alone says too little."""
    return error if failure_of(error) != str(error) else None


@contextmanager
def open_tables(task: HydrationTask, context: Context, *, retries: bool) -> Iterator[TableSet]:
    """Open what the tables of a task share for the time of the task, with errors as Airflow understands them."""
    # Not at the top: parsing a DAG loads no driver.
    from airflow_provider_backpressure.connectors.postgres.connect import keep_connections

    declared = task.declaration(context)
    with airflow_errors(), keep_connections(), declared.open_shared() as shared:
        tables = TableSet(task=task, context=context, shared=shared, declared=declared, retries=retries)
        with beat_for(shared.ledger, lambda: [*tables.heard]):
            yield tables
