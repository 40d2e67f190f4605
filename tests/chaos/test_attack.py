"""Random attacks by seed: every seed ends with a target that holds what it must, or with a refusal.

``ATTACK_SEEDS=17`` or ``0-199`` runs these seeds; without it a few are run, others each day. ``ATTACK_RESULTS=file``
keeps how each ended, with the commit, and leaves out those that are kept already.
"""

import os
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.ledger.migration import migrate
from dev.services import Server
from tests.chaos.attack import Attack
from tests.chaos.results import Results
from tests.chaos.subjects.kafka import KafkaSubject
from tests.chaos.subjects.mysql import MySQLSubject
from tests.chaos.subjects.postgres import PostgresSubject
from tests.chaos.subjects.subject import Subject

pytestmark = [pytest.mark.integration, pytest.mark.fault(14, 19, 23), pytest.mark.timeout(7_200)]

SEEDS, RESULTS = "ATTACK_SEEDS", "ATTACK_RESULTS"
SAMPLE = {"postgres": 2, "mysql": 1, "kafka": 1}
"""Seeds of a run that names none."""
FIRST = 1_000
"""From here on lie the seeds that a run takes by the day."""


def seeds(system: str) -> list[int]:
    """Return the seeds of this run: ``17``, ``3,9``, ``0-199``, or those of the day."""
    wanted = os.environ.get(SEEDS)
    if not wanted:
        first = FIRST + int(time.time() // 86_400) % 100_000 * 10
        return list(range(first, first + SAMPLE[system]))
    spans = (part.partition("-") for part in wanted.split(","))
    return [seed for low, _, high in spans for seed in range(int(low), int(high or low) + 1)]


@pytest.fixture(scope="module")
def empty_ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated ledger in a file, to be copied."""
    path = tmp_path_factory.mktemp("attack") / "empty.db"
    migrate(f"sqlite:///{path}")
    return path


def check(subject: Subject, seed: int, folder: Path, ledger: Path) -> None:
    """Run one seed, and fail where it ended otherwise than equal or refused."""
    result = Attack(seed=seed, subject=subject, folder=folder, ledger=ledger).run()
    Results(RESULTS).add(**asdict(result))
    print(f"{result.system} seed {seed}: {result.outcome} {result.said}")
    assert result.outcome != "failed", f"{result}\n{SEEDS}={seed} pytest {__file__} -k {result.system} runs it again"


def cases(system: str) -> list[int]:
    """Return the seeds that are still to be run."""
    return sorted(set(seeds(system)) - {line["seed"] for line in Results(RESULTS).known(system=system)})


@pytest.mark.statement("T1", "X6")
@pytest.mark.parametrize("seed", cases("postgres"))
def test_a_table_of_postgres_arrives_or_is_refused(
    seed: int, database: Endpoint, tmp_path: Path, empty_ledger: Path
) -> None:
    """T1, X6: whatever is done to a table, its definition, the lanes and the ledger."""
    check(PostgresSubject(seed=seed, database=database), seed, tmp_path, empty_ledger)


@pytest.mark.statement("T1", "X6")
@pytest.mark.parametrize("seed", cases("mysql"))
def test_a_table_of_mysql_arrives_or_is_refused(
    seed: int, mysql_database: Endpoint, database: Endpoint, tmp_path: Path, empty_ledger: Path
) -> None:
    """T1, X6: the same of a table of MySQL."""
    subject = MySQLSubject(seed=seed, database=mysql_database, target=database)
    check(subject, seed, tmp_path, empty_ledger)


@pytest.mark.statement("T1", "X6")
@pytest.mark.parametrize("seed", cases("kafka"))
def test_a_topic_arrives_or_is_refused(
    seed: int, kafka: Server, database: Endpoint, tmp_path: Path, empty_ledger: Path
) -> None:
    """T1, X6: the same of a topic, with transactions, tombstones, and what retention and its owner do to it."""
    subject = KafkaSubject(seed=seed, servers=kafka.url, target=database)
    check(subject, seed, tmp_path, empty_ledger)


def test_a_seed_is_the_same_each_time() -> None:
    """What a seed draws is the same in every process."""
    endpoint = Endpoint(conn_id="x", host="h", port=1, database="d", user="u")
    one, two = (PostgresSubject(seed=5, database=endpoint) for _ in range(2))
    assert (one.mode, one.columns, one.rows) == (two.mode, two.columns, two.rows)
    assert len(Counter(PostgresSubject(seed=seed, database=endpoint).mode for seed in range(40))) == 3
