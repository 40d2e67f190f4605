"""Extras by which a connection could do more than connect: none of them reaches a driver, and no value is logged."""

import json
import logging
from typing import Any

import pytest

from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.hooks.source_and_sink_connections import endpoint

VALUE = "s3cret-value"
PLACE = {"host": "there", "schema": "shop", "login": "reader", "password": "x"}


@pytest.mark.parametrize(
    ("kind", "extras"),
    [
        (
            "postgres",
            ("options", "service", "servicefile", "passfile", "sslpassword", "sslcrl", "hostaddr", "requirepeer"),
        ),
        ("mysql", ("init_command", "read_default_file", "unix_socket", "allow_local_infile", "server_public_key")),
        (
            "kafka",
            (
                "plugin.library.paths",
                "ssl.engine.location",
                "sasl.kerberos.kinit.cmd",
                "debug",
                "ssl.providers",
                "error_cb",
            ),
        ),
        ("aws", ("role_arn", "config_kwargs", "profile_name", "verify")),
    ],
)
def test_what_is_not_meant_is_not_handed_on(
    kind: str, extras: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each is named in the log, so that nobody wonders why it has no effect."""
    monkeypatch.setenv(
        "AIRFLOW_CONN_C", json.dumps({"conn_type": kind, **PLACE, "extra": dict.fromkeys(extras, VALUE)})
    )
    with caplog.at_level(logging.INFO):
        found = endpoint("c", kind)
    assert (found.options, found.executor_host) == ({}, None)
    assert VALUE not in repr(found) + caplog.text
    assert all(name in caplog.text for name in extras)


def test_a_file_that_mysql_would_send_is_never_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra of Airflow's own provider is no news: a server that asks for a file gets none."""
    monkeypatch.setenv("AIRFLOW_CONN_C", json.dumps({"conn_type": "mysql", **PLACE, "extra": {"local_infile": True}}))
    assert endpoint("c", "mysql").options == {}


@pytest.mark.parametrize("name", ["service.name", "principal", "keytab"])
@pytest.mark.parametrize("value", ["x; touch /tmp/x", "$(id)", "`id`", "a b", 'a"b', "a|b", "a\nb"])
def test_what_goes_to_a_shell_is_a_word(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka runs kinit with these by a shell."""
    extra: dict[str, Any] = {"bootstrap.servers": "a:1", f"sasl.kerberos.{name}": value}
    monkeypatch.setenv("AIRFLOW_CONN_C", json.dumps({"conn_type": "kafka", "extra": extra}))
    with pytest.raises(InvalidDeclaration, match="a shell would read") as refused:
        endpoint("c", "kafka")
    assert value not in str(refused.value)


def test_kerberos_names_are_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are in use."""
    extra = {
        "bootstrap.servers": "a:1",
        "sasl.kerberos.principal": "airflow/host-1.example.com@EXAMPLE.COM",
        "sasl.kerberos.keytab": "/etc/security/airflow_1.keytab",
    }
    monkeypatch.setenv("AIRFLOW_CONN_C", json.dumps({"conn_type": "kafka", "extra": extra}))
    assert endpoint("c", "kafka").options == {
        name: value for name, value in extra.items() if name != "bootstrap.servers"
    }
