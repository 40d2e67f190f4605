"""What the code says about itself, for the tables of the reference."""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from enum import Enum
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from airflow_provider_backpressure import base_operator as task
from airflow_provider_backpressure import exceptions, operators, sensors, sinks, sources
from airflow_provider_backpressure.connectors.postgres.sink import system_tables as postgres_tables
from airflow_provider_backpressure.core.admission.gate_watcher import SIGNALS, Watch
from airflow_provider_backpressure.core.admission.permits_and_reservations import gate_decision
from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.gate.hydration_record import GateState, Phase
from airflow_provider_backpressure.core.health_signal_declarations import KINDS, Watched
from airflow_provider_backpressure.hooks.metrics import figures
from airflow_provider_backpressure.ledger.models import metadata
from airflow_provider_backpressure.provider_info import get_provider_info
from airflow_provider_backpressure.task_groups import hydrate
from airflow_provider_backpressure.testing import MemoryLedger
from dev.docs.reference import Facts, Table

OPERATORS, TABLES = "reference/operators.md", "reference/tables.md"
NOTHING = inspect.Parameter.empty
SINK_TABLES = (
    postgres_tables.plan_table(""),
    postgres_tables.commit_table(""),
    postgres_tables.quarantine_table(""),
    postgres_tables.frontier_table(""),
)
DECLARED = (
    sources.PostgresSource,
    sources.KafkaSource,
    sources.Avro,
    sources.JsonSchema,
    sources.Protobuf,
    sources.Debezium,
    sources.MySQLSource,
    sources.LandedSource,
    sources.SparkSource,
    sinks.PostgresSink,
    sinks.ParquetSink,
    sinks.DeltaSink,
    sinks.IcebergSink,
    sinks.SparkTableSink,
)
WATCHING = {
    "`HydrationQueueSensor`": Watch.QUEUE,
    "`SinkCommitSensor`": Watch.COMMIT,
    "`ExecutorMemorySensor`": Watch.MEMORY,
}


def code(value: str) -> str:
    """Return a text as code; nothing for nothing."""
    return f"`{value}`" if value else ""


def default(value: object) -> str:
    """Return a default as one would write it; nothing where there is none."""
    if value is NOTHING:
        return ""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, str):
        return code(f'"{value}"')
    return code(f"{value:_}" if isinstance(value, int) and not isinstance(value, bool) else repr(value))


def kind(annotation: Any) -> str:
    """Return a type in words: ``str`` or ``None``; a table's cell has no room for the bar."""
    plain = re.sub(r"(?:\w+\.)+(\w+)", r"\1", inspect.formatannotation(annotation))
    return " or ".join(code(part) for part in _alternatives(plain))


def _alternatives(union: str) -> Iterator[str]:
    depth, part = 0, ""
    for letter in union:
        depth += (letter == "[") - (letter == "]")
        if letter == "|" and not depth:
            yield part.strip()
            part = ""
        else:
            part += letter
    yield part.strip()


def parameters(*callables: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the named parameters of callables together, without ``self`` and collectors."""
    return {
        name: parameter
        for one in callables
        for name, parameter in inspect.signature(one).parameters.items()
        if name != "self" and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }


def arguments(one: Callable[..., Any]) -> Facts:
    """Return the arguments of a declaration or function with types and defaults."""
    return {
        code(name): {"Type": kind(each.annotation), "Default": default(each.default)}
        for name, each in parameters(one).items()
    }


def further_arguments(module: Any) -> Facts:
    """Return the public classes of a module with the arguments that they add to those of all."""
    common = set(parameters(task.HydrationTask.__init__))
    facts = {}
    for name in module.__all__:
        own = [each for each in reversed(getattr(module, name).__mro__) if each.__module__.startswith(task.__package__)]
        added = parameters(*(each.__init__ for each in own if "__init__" in vars(each)))
        facts[code(name)] = {"Further arguments": ", ".join(code(each) for each in added if each not in common)}
    return facts


def declaration(one: type[Any]) -> Facts:
    """Return the fields of a source or sink, and which may be templates."""
    return {
        name: {**each, "Template": "yes" if name.strip("`") in one.templated else ""}
        for name, each in arguments(one).items()
    }


def options() -> Facts:
    """Return the options of the configuration's section."""
    known = get_provider_info()["config"]["backpressure"]["options"]
    return {code(name): {"Type": each["type"], "Default": code(each["default"])} for name, each in known.items()}


def signals() -> Facts:
    """Return the gate's own signals."""
    state = GateState(
        phase=Phase.HYDRATION,
        credits=1,
        in_flight=0,
        waiting=1,
        reserved_bytes=0,
        oldest_seconds=None,
        commit_seconds=None,
        range_memory_bytes=None,
        paused_by=None,
        paused_why=None,
        memory_closed=False,
    )
    own = gate_decision(state, None, Budget()).signals
    return {code(each.name): {"Learned": "yes" if each.learned else "no"} for each in own}


def watched() -> Facts:
    """Return the signals that a budget may declare."""
    return {code(each.__name__): _watched(each) for each in KINDS.values()}


def _watched(one: type[Watched]) -> dict[str, str]:
    further = [each.name for each in fields(one) if each.init and each.name not in one.thresholds]
    # What is always of the source needs no word.
    fixed = {each.name for each in fields(one) if each.name == "on" and each.default}
    return {
        "Threshold": " or ".join(code(name) for name in one.thresholds),
        "Further arguments": ", ".join(code(name) for name in further if name not in fixed),
        "Closes the gate": "no, it warns" if one.warns else "yes",
    }


def watching() -> Facts:
    """Return which task looks at which of the gate's own signals."""
    order = [name.strip("`") for name in signals()]
    looked = {name: sorted(SIGNALS[watch], key=order.index) for name, watch in WATCHING.items()}
    return {"lanes (`HydrateOperator`)": {"Signals": "all"}} | {
        name: {"Signals": ", ".join(code(each) for each in each_one)} for name, each_one in looked.items()
    }


def ledger_table(table: sa.Table) -> Facts:
    """Return the columns of a ledger's table with their types in PostgreSQL."""
    return {code(column.name): {"Type": _type(column)} for column in table.columns}


def _type(column: sa.Column[Any]) -> str:
    spelt = column.type.compile(dialect=postgresql.dialect())  # type: ignore[no-untyped-call]
    short = spelt.lower().replace("timestamp with time zone", "timestamptz").replace(", 0)", ")")
    return code(short) + (" or null" if column.nullable else "")


def sink_table(table: postgres_tables.SystemTable) -> Facts:
    """Return the columns of a table beside the target."""
    return {
        code(name): {"Type": code(said.split()[0]) + ("" if name in table.primary_key else _may_be_null(said))}
        for name, said in table.columns.items()
    }


def _may_be_null(said: str) -> str:
    return "" if re.search("NOT NULL|PRIMARY KEY|GENERATED", said) else " or null"


def errors() -> Facts:
    """Return the tree of errors, each with the one above it."""
    root = exceptions.BackpressureError
    tree = (each for each in vars(exceptions).values() if isinstance(each, type) and issubclass(each, root))
    return {
        code(each.__name__): {"Kind of": code(each.__bases__[0].__name__) if each is not root else ""} for each in tree
    }


def metrics() -> Facts:
    """Return every figure that leaves Airflow as a metric."""
    ledger = MemoryLedger()
    one = ledger.register(environment="", source_identity="", sink_identity="", owner="", cluster="", credits=1)
    return {code(name): {} for name in figures(ledger, one, None)}


def tables() -> tuple[Table, ...]:
    """Return every table of the reference that the code knows."""
    return (
        Table(page="reference/configuration.md", heading="Budget", facts=partial(arguments, Budget)),
        Table(page="reference/configuration.md", heading="Airflow", facts=options),
        Table(page="reference/signals.md", heading="Signals", facts=signals),
        Table(page="reference/signals.md", heading="Source and sink", facts=watched),
        Table(page="reference/signals.md", heading="Which task looks at what", facts=watching),
        Table(page="reference/errors.md", heading="Errors", facts=errors),
        Table(page="reference/metrics.md", heading="Metrics", facts=metrics),
        Table(page=OPERATORS, heading="hydrate", facts=partial(arguments, hydrate)),
        *(Table(page=OPERATORS, heading=one.__name__, facts=partial(declaration, one)) for one in DECLARED),
        Table(page=OPERATORS, heading="Operators", facts=partial(further_arguments, operators)),
        Table(page=OPERATORS, heading="Sensors", facts=partial(further_arguments, sensors)),
        *(Table(page=TABLES, heading=name, facts=partial(ledger_table, one)) for name, one in metadata.tables.items()),
        *(Table(page=TABLES, heading=one.name.name, facts=partial(sink_table, one)) for one in SINK_TABLES),
    )
