"""Topics that are upserted by Avro keys of several schemas in a real registry: one key is one row, or is refused."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.verification.verifier import Verify
from airflow_provider_backpressure.exceptions import RangeFailed, SourceRefused
from airflow_provider_backpressure.sources import Avro
from tests.integration.test_kafka_source import Run, Stage, stage  # noqa: F401 - the fixture
from tests.integration.test_registry import FIRST, Registered, orders  # noqa: F401 - the fixture
from tests.support import lakes
from tests.support.registry import CONN_ID, avro_record

pytestmark = [pytest.mark.integration, pytest.mark.in_process]

LONG = {"name": "id", "type": "long"}
ONE = {"type": "record", "name": "Key", "fields": [LONG]}
NARROW = {**ONE, "fields": [{"name": "id", "type": "int"}]}
WIDER = {**ONE, "fields": [{"name": "region", "type": "string", "default": "eu"}, LONG]}
OTHER = {**ONE, "fields": [LONG, {"name": "tenant", "type": "string"}]}
FORMAT = Avro(registry_conn_id=CONN_ID)


def upsert(orders: Registered, **changes: Any) -> Run:  # noqa: F811
    """Return a hydration by the records' keys, in ranges of a few records."""
    reading = {"key": FORMAT, **changes.pop("reading", {})}
    run = orders.hydration(FORMAT, mode="upsert", reading=reading, **changes)
    return replace(run, composed=replace(run.composed, budget=Budget(credits=4, range_rows=7, law="fixed")))


def send(orders: Registered, schema: Any, number: int, key: dict[str, Any], state: str | None) -> None:  # noqa: F811
    """Write a record, or a tombstone, of a key by one of the key's schemas."""
    value = orders.subject().register(FIRST)
    record = None if state is None else avro_record(FIRST, {"id": key["id"], "state": state}, value)
    orders.topic.send(0, record, key=avro_record(schema, key, number))


def rows(run: Run) -> list[tuple[dict[str, Any], str]]:
    """Return key and state of each row."""
    if not run.composed.into:
        found = run.rows("key, state")
    else:
        table = lakes.table(**run.composed.into).select(["key", "state"]).to_pylist()
        found = [(row["key"], row["state"]) for row in table]
    return in_order((json.loads(key), state) for key, state in found)


def in_order(found: Iterable[tuple[dict[str, Any], str]]) -> list[tuple[dict[str, Any], str]]:
    """Return rows by their keys."""
    return sorted(found, key=lambda row: (row[0]["id"], row[0].get("region", "")))


@pytest.mark.statement("R1", "R2")
@pytest.mark.parametrize("target", ["postgres", "parts", "iceberg", "delta"])
def test_a_key_of_several_schemas_is_one_row(orders: Registered, target: str, tmp_path: Path) -> None:  # noqa: F811
    """R1, R2: with updates and deletes by other ids. A later schema that writes keys in another way stops the plan."""
    ids = [orders.subject("key").register(schema) for schema in (NARROW, ONE, WIDER)]
    assert len(set(ids)) == 3
    narrow, one, wider = ids
    for number in range(10):
        send(orders, ONE, one, {"id": number}, "new")
    for number in range(5):
        send(orders, NARROW, narrow, {"id": number}, "sent")
    send(orders, WIDER, wider, {"id": 1, "region": "eu"}, "back")
    send(orders, WIDER, wider, {"id": 1, "region": "us"}, "other")
    send(orders, WIDER, wider, {"id": 2, "region": "eu"}, None)
    send(orders, ONE, one, {"id": 3}, None)
    send(orders, WIDER, wider, {"id": 9, "region": "eu"}, "late")
    send(orders, ONE, one, {"id": 9}, "last")
    changes: dict[str, Any] = {"into": lakes.place(target, tmp_path)} if target in ("iceberg", "delta") else {}
    run = upsert(orders, **changes, reading={"upsert_parts": 2} if target == "parts" else {})
    run.go()
    states = {0: "sent", 1: "back", 4: "sent", **dict.fromkeys(range(5, 9), "new"), 9: "last"}
    expected = [({"id": number, "region": "eu"}, state) for number, state in states.items()]
    assert rows(run) == in_order([*expected, ({"id": 1, "region": "us"}, "other")])
    assert run.verify().equal

    # The same form of key by one more id goes on.
    again = orders.subject("key").register({**WIDER, "doc": "Again.", "aliases": ["Before"]})
    send(orders, WIDER, again, {"id": 9, "region": "eu"}, None)
    run.go()
    assert {"id": 9, "region": "eu"} not in [key for key, _ in rows(run)]
    before = rows(run)
    region = {"name": "zone", "type": "int", "default": 0}
    last = orders.subject("key").register({**WIDER, "fields": [*WIDER["fields"], region]})
    words = rf"Schema {last} \(version . of subject .*\) writes keys in another way than schema {again}, by which"
    for forget in (lambda: None, lambda: orders.subject("key").delete_permanently(3)):
        forget()
        with pytest.raises(SourceRefused, match=words):
            run.plan()
    assert rows(run) == before


@pytest.mark.statement("R2", "R4")
def test_a_schema_of_another_key_is_named_or_kept(orders: Registered) -> None:  # noqa: F811
    """R2, R4: two keys would be one without the field; where rows are appended it does not matter."""
    before, latest = (orders.subject("key").register(schema) for schema in (OTHER, ONE))
    send(orders, ONE, latest, {"id": 1}, "new")
    send(orders, OTHER, before, {"id": 1, "tenant": "a"}, "sent")
    send(orders, ONE, latest, {"id": 1}, "last")
    words = (
        f"offset 1 of partition 0 .* its key by schema {before} is no key of schema {latest}: field tenant is gone, "
        "so that several keys would be one"
    )
    run = upsert(orders)
    run.plan()
    with pytest.raises((SourceRefused, RangeFailed), match=words):
        run.drain()
    kept = replace(run, composed=replace(run.composed, quarantine=1, target=f"raw.{orders.topic.name}q"))
    kept.go()
    assert rows(kept) == [({"id": 1}, "last")]
    assert kept.sql("SELECT key::json->>'offset' FROM raw.backpressure_quarantine WHERE target = '{}'") == [("1",)]
    added = orders.hydration(FORMAT, reading={"key": FORMAT})
    added = replace(added, composed=replace(added.composed, target=f"raw.{orders.topic.name}a"))
    added.go()
    assert added.rows('"offset", key') == [(0, '{"id": 1}'), (1, '{"id": 1, "tenant": "a"}'), (2, '{"id": 1}')]
    orders.subject("key").register(WIDER)
    send(orders, ONE, latest, {"id": 2}, "new")
    added.go()
    assert len(added.rows('"offset", key')) == 4
    assert added.verify(Verify.FULL).equal
