"""Names that databases, configurations and DAGs of users hold: a change of one breaks what was written before it."""

import configparser
import importlib
from pathlib import Path

import pytest

from airflow_provider_backpressure import operators, sensors, sinks, sources, task_groups, testing, triggers
from airflow_provider_backpressure.cli.definition import get_commands
from airflow_provider_backpressure.core import config
from airflow_provider_backpressure.ledger.models import metadata
from airflow_provider_backpressure.provider_info import get_provider_info

PACKAGE = "airflow_provider_backpressure"
OBJECTS = (
    # Airflow's metadata database holds the paths of deferred triggers, serialized DAGs those of links.
    "triggers.admission.AdmissionTrigger",
    "triggers.admissions.AdmissionsTrigger",
    "triggers.turn.TurnTrigger",
    "triggers.unread.UnreadTrigger",
    "links.HydrationLink",
    "links.RangeLink",
    # Configurations name these.
    "ledger.db_manager.BackpressureDBManager",
    "hooks.backpressure.BackpressureHook",
    "plugins.plugin.BackpressurePlugin",
    "runners.daemon.load",
    # Documentation names these.
    "assets.hydration_asset",
    "assets.hydrations_of",
    "assets.watch_source",
    "core.config.Budget",
    "ledger.migration.downgrade",
    "ledger.migration.migrate",
)
FACES = {
    operators: "HydrateOperator ListTablesOperator PlanSnapshotOperator SubmitRangeOperator VerifyHydrationOperator",
    sensors: "ExecutorMemorySensor HydrationQueueSensor SinkCommitSensor",
    sinks: "DeltaSink IcebergSink ParquetSink PostgresSink SparkTableSink",
    sources: "KafkaSource LandedSource MySQLSource PostgresSource SparkSource",
    task_groups: "hydrate",
    testing: "MemoryHealth MemoryLedger MemoryRunner MemoryScratch MemorySink MemorySource",
    triggers: "AdmissionTrigger AdmissionsTrigger TurnTrigger UnreadTrigger",
    config: "ActiveSessions Budget Query ReplicaLag Retention SlotLag WalHeadroom WalRate",
}
TABLES = "control flow hydration limit phase push queue range sample source_statistics upstream"
COMMANDS = (
    "plan reindex rehydrate status sources ranges pause resume set queue push history retry-range skip-range prune "
    "change-owner forget uninstall verify probe doctor setup grants"
)


@pytest.mark.parametrize("path", OBJECTS)
def test_an_object_is_where_it_was(path: str) -> None:
    module, _, name = path.rpartition(".")
    assert hasattr(importlib.import_module(f"{PACKAGE}.{module}"), name)


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
def test_a_public_module_has_its_names(face: object) -> None:
    assert set(FACES[face].split()) <= set(dir(face))


def test_tables_and_commands_have_their_names() -> None:
    assert {f"backpressure_{name}" for name in TABLES.split()} == set(metadata.tables)
    (group,) = get_commands()
    assert set(COMMANDS.split()) <= {command.name for command in group.subcommands}


def test_airflow_finds_what_it_is_told() -> None:
    """Every path in the provider's info, and the entry points of the package."""
    info = get_provider_info()
    paths = [*info["extra-links"], *info["db-managers"], *info["cli"]]
    paths += [each["hook-class-name"] for each in info["connection-types"]]
    for path in paths:
        module, _, name = path.rpartition(".")
        assert hasattr(importlib.import_module(module), name), path
    assert [each["connection-type"] for each in info["connection-types"]] == ["backpressure"]
    assert list(info["config"]) == ["backpressure"]
    setup = configparser.ConfigParser()
    setup.read(Path(__file__).resolve().parents[2] / "setup.cfg")
    points = setup["options.entry_points"]
    assert f"{PACKAGE}.provider_info:get_provider_info" in points["apache_airflow_provider"]
    assert f"{PACKAGE}.plugins.plugin:BackpressurePlugin" in points["airflow.plugins"]
