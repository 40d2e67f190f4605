"""Tables that many plans ask for soon after each other are looked up together, and each answer is given once."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from airflow_provider_backpressure.connectors.postgres.catalog import Relation
from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName
from airflow_provider_backpressure.connectors.postgres.source import catalog_lookup_batch
from airflow_provider_backpressure.connectors.postgres.source.catalog_lookup_batch import (
    TOGETHER,
    expect,
    find_expected,
)

NAMES = [QualifiedName(schema="public", name=f"t{number}") for number in range(TOGETHER + 20)]


@dataclass
class Catalogue:
    """Answers looks, and notes which tables each was for."""

    looks: list[list[QualifiedName]] = field(default_factory=list)
    absent: set[QualifiedName] = field(default_factory=set)
    error: Exception | None = None

    def read(self, connection: Any, names: list[QualifiedName]) -> dict[QualifiedName, Relation]:
        """Look up several."""
        self.looks.append(list(names))
        if self.error is not None:
            raise self.error
        return {name: make(name) for name in names if name not in self.absent}

    def find(self, session: Any, name: QualifiedName) -> Relation | None:
        """Look up one."""
        self.looks.append([name])
        return None if name in self.absent else make(name)


@pytest.fixture
def catalogue(monkeypatch: pytest.MonkeyPatch) -> Catalogue:
    made = Catalogue()
    monkeypatch.setattr(catalog_lookup_batch, "read_relations", made.read)
    monkeypatch.setattr(catalog_lookup_batch, "read_uncarried", lambda connection, tables: {key: {} for key in tables})
    monkeypatch.setattr(catalog_lookup_batch, "find", made.find)
    return made


def make(name: QualifiedName) -> Relation:
    return Relation(
        oid=NAMES.index(name),
        name=name,
        kind="r",
        columns=(),
        keys=(),
        temporary=False,
        has_children=False,
        schema_usable=True,
        row_security=False,
        user_triggers=False,
        rules=False,
        may_select=True,
    )


def session(key: str = "shop") -> Any:
    return SimpleNamespace(key=(key,), read=lambda work: work(None))


def ask(name: QualifiedName, key: str = "shop") -> Relation | None:
    return find_expected(session(key), name)


@pytest.mark.statement("L3")
def test_expected_tables_are_looked_up_together(catalogue: Catalogue) -> None:
    with expect(NAMES):
        found = [ask(name) for name in NAMES]
    assert [each.name for each in found if each is not None] == NAMES
    assert [len(look) for look in catalogue.looks] == [TOGETHER, 20]


def test_an_answer_is_given_once(catalogue: Catalogue) -> None:
    """The second question about a table is a look of its own: the table may have changed since."""
    with expect(NAMES):
        ask(NAMES[0])
        ask(NAMES[1])
        assert len(catalogue.looks) == 1
        ask(NAMES[1])
    assert catalogue.looks[1:] == [[NAMES[1]]]


def test_each_server_and_login_has_its_own_answers(catalogue: Catalogue) -> None:
    with expect(NAMES[:3]):
        ask(NAMES[0])
        ask(NAMES[1], "another")
    assert catalogue.looks == [NAMES[:3], [NAMES[1], NAMES[0], NAMES[2]]]


def test_an_answer_that_is_old_does_not_hold(catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    with expect(NAMES[:3]):
        ask(NAMES[0])
        monkeypatch.setattr(catalog_lookup_batch, "FRESH_SECONDS", -1.0)
        ask(NAMES[1])
    assert catalogue.looks[1:] == [[NAMES[1]]]


def test_a_table_that_is_not_there_has_no_answer(catalogue: Catalogue) -> None:
    catalogue.absent = {NAMES[0], NAMES[1]}
    with expect(NAMES[:3]):
        assert ask(NAMES[0]) is None
        assert ask(NAMES[1]) is None


@pytest.mark.statement("L4")
def test_a_look_that_fails_for_one_table_fails_no_other(catalogue: Catalogue) -> None:
    """The table that is asked for is looked up by itself. A server that does not answer is an error."""
    catalogue.error = psycopg.errors.UndefinedTable("gone in the middle")
    with expect(NAMES[:3]):
        assert ask(NAMES[0]) is not None
        assert ask(NAMES[1]) is not None
        assert catalogue.looks == [NAMES[:3], [NAMES[0]], [NAMES[1]]]
    catalogue.error = psycopg.OperationalError("away")
    with expect(NAMES[:3]), pytest.raises(psycopg.OperationalError):
        ask(NAMES[0])


def test_nothing_is_expected_afterwards(catalogue: Catalogue) -> None:
    with expect(NAMES[:3]):
        ask(NAMES[0])
    ask(NAMES[1])
    assert catalogue.looks[1:] == [[NAMES[1]]]
