"""V7: docker-compose.yml is the demo with Docker: a change of one without the other fails here.

Docker itself is not run. Its shell lines are, and tests/integration/test_sources.py runs the module that fills the
sources.
"""

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from dev import demo, lake_connectors, sources
from dev.airflow import USER
from dev.downloads import pinned
from dev.servers import kafka, mysql, postgres, spark
from dev.servers.server import Server

pytestmark = pytest.mark.statement("V7")

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docker-compose.yml"
DAGS = sorted((ROOT / "dags").glob("*.py"))
PASSWORD = "${BACKPRESSURE_PASSWORD}"
EXTRAS = {"KafkaSource": "kafka", "MySQLSource": "mysql", "DeltaSink": "delta", "IcebergSink": "iceberg"}
"""Extras that declarations need."""
OF_OUR_OWN = {
    "bind_address",
    "log_bin",
    "binlog_format",
    "innodb_buffer_pool_size",
    "innodb_use_native_aio",
    "innodb_flush_log_at_trx_commit",
    "sync_binlog",
    "skip_name_resolve",
    "performance_schema",
    "socket",
    "mysqlx",
    "auto_generate_certs",
    "caching_sha2_password_auto_generate_rsa_keys",
}
"""MySQL's settings that suit a machine without Docker, or that are its own by default."""


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The file, with what its anchors refer to."""
    return dict(yaml.safe_load(FILE.read_text()))


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, Any]:
    """Its services by name."""
    return dict(compose["services"])


def variables(service: dict[str, Any]) -> dict[str, str]:
    """Return a service's environment."""
    return dict(service.get("environment", {}))


def calls(path: Path) -> Iterator[ast.Call]:
    """Yield all calls of a DAG file."""
    yield from (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))


def constants(path: Path, pattern: str) -> set[str]:
    """Return what is given as text under a keyword, or under a key of a dictionary."""
    tree = list(ast.walk(ast.parse(path.read_text())))
    given = [(word.arg, word.value) for node in tree if isinstance(node, ast.Call) for word in node.keywords]
    given += [
        (key.value, value)
        for node in tree
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant)
    ]
    return {
        str(value.value)
        for name, value in given
        if name and re.fullmatch(pattern, str(name)) and isinstance(value, ast.Constant)
    }


def server(name: str, *, port: int, user: str | None = None, ui_port: int | None = None, url: str = "") -> Server:
    """Return a server as the demo would have it, at its address among the services."""
    return Server(
        name=name,
        kind=name,
        host=name,
        port=port,
        pid=None,
        log=Path(os.devnull),
        url=url,
        user=user,
        password=PASSWORD if user else None,
        ui_port=ui_port,
    )


def plain(connection: dict[str, Any]) -> dict[str, Any]:
    """Return a connection whose extra is an object, as Airflow reads either form."""
    extra = connection.get("extra")
    return {**connection, "extra": json.loads(extra)} if isinstance(extra, str) else connection


class TestAirflow:
    """Every example DAG finds its connections, packages and data."""

    def test_its_connections_are_the_demos(self, services: dict[str, Any]) -> None:
        given = variables(services["airflow"])
        found = {
            name.removeprefix("AIRFLOW_CONN_").lower(): json.loads(value)
            for name, value in given.items()
            if name.startswith("AIRFLOW_CONN_")
        }
        ours = demo.connections(
            server("postgres", port=5432, user=postgres.USER),
            server("mysql", port=3306, user=mysql.USER),
            server("kafka", port=19092, url="kafka:19092"),
            server("spark-connect", port=15002, ui_port=4040),
        )
        assert found == {conn_id: plain(connection) for conn_id, connection in ours.items()}

    @pytest.mark.parametrize("path", DAGS, ids=lambda path: path.stem)
    def test_what_a_dag_names_is_there(self, path: Path, compose: dict[str, Any], services: dict[str, Any]) -> None:
        given = variables(services["airflow"])
        for conn_id in constants(path, "(.*_)?conn_id"):
            assert f"AIRFLOW_CONN_{conn_id.upper()}" in given
        asked = re.findall(r"os\.environ(?:\.get\(|\[)\"(\w+)\"", path.read_text())
        assert set(asked) <= given.keys()
        assert "Variable" not in path.read_text()
        for call in calls(path):
            name = call.func.id if isinstance(call.func, ast.Name) else ""
            assert EXTRAS.get(name) in {None, *provider(compose).extras}, name
            if name.endswith("Source"):
                words = {word.arg: word.value.value for word in call.keywords if isinstance(word.value, ast.Constant)}
                assert words.get("table", words.get("topic")) in sources.SOURCES[str(words["conn_id"])]

    def test_its_dags_are_those_that_the_demo_runs(self, services: dict[str, Any]) -> None:
        assert {path.stem for path in DAGS} == set(demo.DAGS)
        assert "./dags:/opt/airflow/dags:ro" in services["airflow"]["volumes"]
        assert variables(services["airflow"])["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS"] == f"{USER}:admin"

    def test_its_databases_are_the_demos(self, compose: dict[str, Any]) -> None:
        made = re.findall(r"CREATE DATABASE (\w+);", compose["configs"]["databases"]["content"])
        assert tuple(made) == demo.DATABASES

    def test_its_sources_are_filled_by_the_demos_module(self, services: dict[str, Any]) -> None:
        filling = services["sources"]
        assert filling["entrypoint"] == ["python", "-m", sources.__name__]
        assert filling["volumes"] == [f"./dev:{filling['working_dir']}/dev:ro"]
        ours = {name: value for name, value in variables(services["airflow"]).items() if "AIRFLOW_CONN" in name}
        assert variables(filling) == ours
        assert filling["depends_on"].keys() == {"postgres", "mysql", "kafka"}
        assert services["airflow"]["depends_on"]["sources"] == {"condition": "service_completed_successfully"}

    def test_the_folder_of_files_is_the_same_everywhere(
        self, compose: dict[str, Any], services: dict[str, Any]
    ) -> None:
        folder = variables(services["airflow"])["LAKE_FOLDER"]
        for name in ("airflow", "spark-connect", "spark-worker"):
            assert f"lake:{folder}" in services[name]["volumes"], name
        made = re.search(r"install -d -o airflow -g 0 (.+)", compose["x-provider"]["build"]["dockerfile_inline"])
        assert made
        mounted = [word.split(":") for word in services["airflow"]["volumes"]]
        assert set(made[1].split()) == {target for name, target, *_ in mounted if name in compose["volumes"]}
        used = {word.split(":")[0] for one in services.values() for word in one.get("volumes", [])}
        assert {name for name in used if not name.startswith(".")} == set(compose["volumes"])


def provider(compose: dict[str, Any]) -> Requirement:
    """Return this package as the image installs it, with its extras."""
    (line,) = re.findall(r"RUN pip install --no-cache-dir (.+)", compose["x-provider"]["build"]["dockerfile_inline"])
    (path,) = (word for word in re.findall(r'"([^"]+)"', line) if word.startswith("/opt/provider"))
    return Requirement(path.removeprefix("/opt/"))


class TestVersions:
    """The same versions as the demo's."""

    def test_packages(self, compose: dict[str, Any]) -> None:
        text = compose["x-provider"]["build"]["dockerfile_inline"]
        assert f"FROM apache/airflow:{version('apache-airflow')}\n" in text
        for name in ("apache-airflow", "pyspark", "pyspark-client", "tpchgen-cli"):
            found = re.search(rf'"{name}(\[\w+\])?==([\d.]+)"', text)
            assert found
            assert found[2] == version(name), name

    def test_images(self, services: dict[str, Any]) -> None:
        (broker,) = (one for one in pinned("kafka") if one.name == "kafka_2.13")
        (database,) = pinned("postgres-x86_64")
        assert mysql.__doc__
        found = re.match(r"MySQL ([\d.]+)", mysql.__doc__)
        assert found
        assert {one["image"] for one in services.values()} == {
            f"postgres:{database.version.partition('.')[0]}",
            f"apache/kafka:{broker.version}",
            f"mysql:{found[1]}",
            "airflow-provider-backpressure:dev",
        }

    def test_connectors(self, services: dict[str, Any]) -> None:
        (packages,) = (word for word in services["spark-connect"]["command"] if "--packages" in word)
        ours = [one for group in ("jars-postgres", "jars-mysql", "jars-iceberg") for one in pinned(group)]
        assert packages == "--packages=" + ",".join(f"{one.organisation}:{one.name}:{one.version}" for one in ours)


class TestServers:
    """The servers are those of the demo, set as they are."""

    def test_it_has_the_demos_servers(self, services: dict[str, Any]) -> None:
        always = {name for name, one in services.items() if "profiles" not in one}
        ours = {"spark-connect" if name == "connect" else name for name in demo.SERVERS}
        assert always == ours | {"sources", "airflow"}

    def test_it_publishes_on_loopback_only(self, services: dict[str, Any]) -> None:
        published = [port for one in services.values() for port in one.get("ports", [])]
        assert len(published) == len(set(published)) == 7
        assert all(port.startswith("127.0.0.1:") for port in published)

    def test_one_waits_for_what_shows_that_it_is_well(self, services: dict[str, Any]) -> None:
        for one in services.values():
            for name, how in one.get("depends_on", {}).items():
                assert how["condition"] != "service_healthy" or "healthcheck" in services[name]

    def test_postgres(self, services: dict[str, Any]) -> None:
        given = dict(word.removeprefix("-c").split("=") for word in services["postgres"]["command"][1:])
        local = {"listen_addresses", "unix_socket_directories", "log_timezone", "log_line_prefix"}
        ours = {name: value for name, value in postgres.SETTINGS.items() if name not in local}
        assert given == {**ours, "fsync": "off", "full_page_writes": "off"}

    def test_mysql(self, services: dict[str, Any]) -> None:
        given = dict(word.removeprefix("--").split("=") for word in services["mysql"]["command"])
        ours = {**mysql.COMMON, **mysql.MYSQL}
        assert ours.keys() >= OF_OUR_OWN
        assert {name.replace("-", "_"): value for name, value in given.items()} == {
            name.removeprefix("loose_"): value for name, value in ours.items() if name not in OF_OUR_OWN
        }

    def test_kafka(self, services: dict[str, Any]) -> None:
        environment = variables(services["kafka"])
        own = {"controller.listener.names", "listener.security.protocol.map", "log.cleaner.dedupe.buffer.size"}
        for name in kafka.SETTINGS.keys() - own:
            assert environment["KAFKA_" + name.upper().replace(".", "_")] == kafka.SETTINGS[name]

    def test_spark(self, services: dict[str, Any]) -> None:
        words = [word for word in services["spark-connect"]["command"] if word.startswith("--conf=")]
        conf = dict(word.removeprefix("--conf=").split("=", 1) for word in words)
        assert (spark.MEASURED | lake_connectors.ICEBERG).items() <= conf.items()
        folder = variables(services["airflow"])["LAKE_FOLDER"]
        assert conf[lake_connectors.WAREHOUSE] == str(demo.CLUSTER_LAKE).replace(str(demo.LAKE), folder)
        assert conf["spark.redaction.string.regex"] == spark.SECRETS
        assert "$" not in spark.SECRETS, "Compose would take it for a variable"


class TestShell:
    """What a shell runs, run by a shell."""

    def test_airflow_starts_with_its_password_and_tables(self, services: dict[str, Any], tmp_path: Path) -> None:
        """In this order, with a password file that only its owner can read."""
        *shell, line = services["airflow"]["command"]
        fake = tmp_path / "airflow"
        fake.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/called\n')
        fake.chmod(0o755)
        passwords = tmp_path / "passwords.json"
        subprocess.run(
            [*shell, line.replace("$$", "$")],
            env={
                "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
                "BACKPRESSURE_PASSWORD": "letters1",
                "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
            },
            check=True,
        )
        assert (tmp_path / "called").read_text().splitlines() == ["db migrate", "backpressure setup", "standalone"]
        assert json.loads(passwords.read_text()) == {USER: "letters1"}
        assert passwords.stat().st_mode & 0o077 == 0

    @pytest.mark.parametrize("name", ["spark-master", "spark-worker"])
    def test_the_clusters_program_is_found(self, name: str, services: dict[str, Any]) -> None:
        """Where PySpark is installed, with every word that follows."""
        (line,) = services[name]["command"]
        start = line.replace("$$", "$").replace("exec ", "printf '%s\\n' ", 1)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            [*services[name]["entrypoint"], start], env={"PATH": path}, check=True, capture_output=True, text=True
        )
        program, main, *_ = done.stdout.splitlines()
        assert os.access(program, os.X_OK)
        assert main.startswith("org.apache.spark.deploy.")

    def test_each_dollar_is_composes_or_doubled(self) -> None:
        """A single one before a word would be a variable of the host, empty where it is not set."""
        text = FILE.read_text()
        found = set(re.findall(r"(?<!\$)\$(?!\$)(\{\w+|\w*)", text))
        assert found == {"{BACKPRESSURE_PASSWORD", "{SPARK_MASTER"}

    def test_it_holds_no_password(self) -> None:
        text = FILE.read_text()
        given = re.findall(r"PASSWORD: (.*)", text)
        assert given
        assert all(value.startswith("${BACKPRESSURE_PASSWORD:?") for value in given)
        logins = re.findall(r'"password": "([^"]*)"', text)
        assert set(logins) == {PASSWORD}
