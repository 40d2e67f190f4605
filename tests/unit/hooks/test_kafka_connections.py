"""From Airflow's Kafka connection to an endpoint: settings by their names, the password apart from them."""

import json
import logging
from typing import Any

import pytest

from airflow_provider_backpressure.connectors.kafka.connect import login_settings
from airflow_provider_backpressure.core.endpoints import Endpoint, endpoints_from_json, endpoints_to_json
from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.hooks.source_and_sink_connections import endpoint

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


OAUTH = {
    "bootstrap.servers": "a:1",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "reader",
    "sasl.oauthbearer.client.secret": SECRET,
    "sasl.oauthbearer.token.endpoint.url": "https://login/token",
}


@pytest.mark.statement("R6")
def test_secrets_of_a_key_travel_apart_from_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """R6: they are in the file that a driver gets, and in no repr and no option."""
    keys = {"ssl.key.password": SECRET, "ssl.key.pem": f"{SECRET}-pem", "ssl.keystore.password": f"{SECRET}-store"}
    found = made(monkeypatch, extra={"bootstrap.servers": "a:1", "ssl.keystore.location": "/k.p12", **keys})
    assert (found.options, found.secrets) == ({"ssl.keystore.location": "/k.p12"}, keys)
    assert SECRET not in repr(found)
    assert found.for_executors().secrets == keys
    assert endpoints_from_json(endpoints_to_json({"events": found})) == {"events": found}
    assert login_settings(found) == keys


@pytest.mark.statement("R6")
@pytest.mark.parametrize("name", ["sasl.oauthbearer.client.", "sasl.oauthbearer.client.credentials.client."])
def test_client_credentials_are_user_and_password(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """R6: by both names that librdkafka has for them; clients get them by the older one, which all versions know."""
    without = {key: value for key, value in OAUTH.items() if ".client." not in key}
    found = made(monkeypatch, extra={**without, f"{name}id": "reader", f"{name}secret": SECRET})
    assert (found.user, found.password) == ("reader", SECRET)
    assert not {key for key in found.options if ".client." in key}
    assert login_settings(found) == {
        "sasl.oauthbearer.client.id": "reader",
        "sasl.oauthbearer.client.secret": SECRET,
    }


@pytest.mark.statement("R6")
def test_a_callback_for_tokens_counts_only_for_oauth(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """R6: another mechanism never asks for it."""
    with caplog.at_level(logging.INFO):
        made(monkeypatch, extra={"bootstrap.servers": "a:1", "oauth_cb": "my.tokens"})
    assert "no meaning here: oauth_cb" in caplog.text


@pytest.mark.statement("R6", "X5", "X7")
@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({}, "names no bootstrap.servers"),
        ({**OAUTH, "oauth_cb": "my.tokens"}, "oauth_cb of connection 'events' is a function"),
        ({**OAUTH, "sasl.oauthbearer.method": "default"}, "needs sasl.oauthbearer.method = oidc"),
        ({**OAUTH, "sasl.oauthbearer.assertion.private.key.pem": SECRET}, "assertion.private.key.pem of .* cannot"),
        ({**OAUTH, "sasl.oauthbearer.grant.type": "jwt-bearer"}, "grant.type of .* cannot be carried"),
        ({**OAUTH, "sasl.oauthbearer.client.id": ""}, "also needs the extra sasl.oauthbearer.client.id"),
        (
            {**OAUTH, "sasl.oauthbearer.token.endpoint.url": f"https://x:{SECRET}@login/token"},
            "token.endpoint.url of .* is no address",
        ),
    ],
)
def test_what_is_missing_or_cannot_be_carried_is_named(
    monkeypatch: pytest.MonkeyPatch, extra: dict[str, str], words: str
) -> None:
    """R6, X5, X7: one sentence, without a secret."""
    with pytest.raises(InvalidDeclaration, match=words) as refused:
        made(monkeypatch, extra=extra)
    assert SECRET not in str(refused.value)
