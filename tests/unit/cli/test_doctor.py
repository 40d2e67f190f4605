"""What ``doctor`` says of the schema registries that topics are read by."""

import json
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_backpressure.cli.doctor import CHECKS, Subject, check_subjects, find_subjects
from airflow_provider_backpressure.hooks.hydration_session import Declaration
from airflow_provider_backpressure.hooks.recorded_declaration import to_json
from airflow_provider_backpressure.hooks.source_and_sink_connections import endpoint
from airflow_provider_backpressure.operators import PlanSnapshotOperator
from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import Avro, Debezium, JsonSchema, KafkaSource, Protobuf
from tests.support.world import World, context
from tests.unit.connectors.kafka.source.test_schema_versions import SECRET, answering

FORMAT = Avro(registry_conn_id="registry")
PATH = "/api/subjects/orders-value/versions"


def avro(**fields: str) -> str:
    """Return a schema with these fields."""
    each = [{"name": name, "type": type_} for name, type_ in fields.items()]
    return json.dumps({"type": "record", "name": "Order", "fields": each})


ANSWERS: dict[str, tuple[int, Any]] = {
    "/api/schemas/types": (200, ["JSON", "AVRO"]),
    PATH: (200, [1, 2]),
    f"{PATH}/1": (200, {"id": 7, "version": 1, "schema": avro(id="string")}),
    f"{PATH}/2": (200, {"id": 9, "version": 2, "schema": avro(id="long", state="string")}),
}


def connect(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Let Airflow's connection of the registry lead there, with a login."""
    fields = {"conn_type": "http", "host": url, "login": "reader", "password": SECRET}
    monkeypatch.setenv("AIRFLOW_CONN_REGISTRY", json.dumps(fields))


@pytest.mark.statement("R2", "R4")
def test_a_subject_is_read_as_a_run_that_plans_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of R2 and R4: its versions, columns, and what does not fit; or why it cannot be read, without a secret."""
    value = Subject(name="orders-value", part="value", format=FORMAT)
    with answering(ANSWERS, []) as place:
        connect(monkeypatch, place.host)
        answers = f"The schema registry answers reader at {place.host}: "
        assert list(CHECKS["http"](endpoint("registry", "http"))) == [
            f"{answers}it holds schemas of the types AVRO, JSON."
        ]
        strange = replace(value, format=Protobuf(registry_conn_id="registry"))
        found = list(check_subjects("registry", [replace(value, name="gone-value"), value, strange]))
    assert [each.ok for each in found] == [False, True, True, False]
    assert "has no subject gone-value" in found[0].finding
    assert found[1].what == "subject orders-value of registry"
    columns = "the subject has 2 versions, the latest is schema 9 (AVRO). Columns: id bigint, state text."
    assert found[1].finding == answers + columns
    assert "its schema 7 does not fit schema 9: field id is text and not bigint" in found[2].finding
    assert "is of type AVRO, and Protobuf needs schemas of type PROTOBUF" in found[3].finding
    with answering({PATH: (401, {})}, []) as place:
        connect(monkeypatch, place.host)
        found += check_subjects("registry", [value])
    assert "does not let reader in (HTTP 401)" in found[-1].finding
    found += check_subjects("registry", [value])
    assert "does not answer" in found[-1].finding
    assert not any(each.ok for each in found[-2:])
    assert SECRET not in str(found)


def test_a_registry_without_a_list_of_types_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """What answers may be another service."""
    for answer in ({}, {"/api/schemas/types": (200, {"message": "welcome"})}):
        with answering(answer, []) as place, pytest.raises(Exception, match=r"has no list of the types|is no schema"):
            list(CHECKS["http"](place))


def test_subjects_are_those_of_the_topics_in_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once, by the connection of its registry; on demand of some topics or registries only."""
    world = World()
    world.install(monkeypatch)
    PlanSnapshotOperator(task_id="plan_snapshot", **world.flow).execute(context())
    (table,) = world.ledger.hydrations()

    def of(**fields: Any) -> Any:
        source = KafkaSource(conn_id="events", topic="orders", **fields)
        sink = PostgresSink(conn_id="w", table="raw.t")
        declared = Declaration(source=source, sink=sink, spark_conn_id="spark", owner="data")
        return replace(table, declaration=to_json(declared))

    other = JsonSchema(registry_conn_id="second", subject="shop.Order")
    topics = [table, of(value=FORMAT, key=FORMAT), of(value=FORMAT), of(value=other), of(format="raw")]
    first = [Subject(name=f"orders-{part}", part=part, format=FORMAT) for part in ("key", "value")]
    second = [Subject(name="shop.Order", part="value", format=other)]
    assert find_subjects(topics) == {"registry": first, "second": second}
    assert find_subjects(topics, ["events"]) == find_subjects(topics)
    assert find_subjects(topics, ["second"]) == {"second": second}
    assert find_subjects(topics, ["warehouse"]) == {}
    (events,) = find_subjects([of(value=FORMAT, envelope=Debezium())])["registry"]
    assert events.format.settings()["format"] == "avro-events"
