"""From Airflow's Kafka connection to an endpoint: settings by their names, the password apart from them."""

import json
import logging
from typing import Any

import pytest

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.hooks.endpoints import endpoint

SECRET = "s3cret-word"


def made(monkeypatch: pytest.MonkeyPatch, **values: Any) -> Endpoint:
    """Return the endpoint of a connection with these fields."""
    monkeypatch.setenv("AIRFLOW_CONN_EVENTS", json.dumps({"conn_type": "kafka", **values}))
    return endpoint("events", "kafka")


@pytest.mark.statement("X7")
def test_settings_are_read_by_their_names(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """X7: the password is not among the settings nor in repr, and what is ignored is named without its value."""
    with caplog.at_level(logging.INFO):
        found = made(
            monkeypatch,
            extra={
                "bootstrap.servers": "b:9092, a:9092",
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": "reader",
                "sasl.password": SECRET,
                "ssl.ca.location": "/ca.pem",
                "enable.ssl.certificate.verification": False,
                "group.id": "a-group",
                "executor_bootstrap_servers": "10.0.0.7:9092",
            },
        )
    assert found == Endpoint(
        conn_id="events",
        host="a:9092,b:9092",
        port=0,
        database="",
        user="reader",
        password=SECRET,
        options={
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "ssl.ca.location": "/ca.pem",
            "enable.ssl.certificate.verification": "false",
        },
        executor_host="10.0.0.7:9092",
    )
    assert found.for_executors().host == "10.0.0.7:9092"
    assert SECRET not in repr(found)
    assert "group.id" in caplog.text
    assert "a-group" not in caplog.text


def test_host_and_login_stand_for_what_the_extra_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that was made in the form's plain fields."""
    found = made(monkeypatch, host="broker", login="reader", password=SECRET)
    assert (found.host, found.user, found.password) == ("broker:9092", "reader", SECRET)


@pytest.mark.statement("X5", "X7")
@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({}, "names no bootstrap.servers"),
        ({"bootstrap.servers": "a:1", "ssl.key.password": SECRET}, "ssl.key.password of connection 'events' cannot"),
    ],
)
def test_what_is_missing_or_cannot_be_carried_is_named(
    monkeypatch: pytest.MonkeyPatch, extra: dict[str, str], words: str
) -> None:
    """X5, X7: one sentence, without a secret."""
    with pytest.raises(InvalidDeclaration, match=words) as refused:
        made(monkeypatch, extra=extra)
    assert SECRET not in str(refused.value)
