"""From Airflow's connection to a schema registry's endpoint, which stays on the planning side."""

import json
from typing import Any

import pytest

from airflow_provider_backpressure.core.endpoints import NOWHERE, Endpoint, endpoints_to_json
from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.hooks.recorded_declaration import from_plain, plain
from airflow_provider_backpressure.hooks.source_and_sink_connections import endpoint, with_related
from airflow_provider_backpressure.sources import Avro, KafkaSource

SECRET = "s3cret-word"


def made(monkeypatch: pytest.MonkeyPatch, **values: Any) -> Endpoint:
    """Return the endpoint of a connection with these fields."""
    monkeypatch.setenv("AIRFLOW_CONN_REGISTRY", json.dumps({"conn_type": "http", **values}))
    return endpoint("registry", "http")


@pytest.mark.parametrize(
    ("values", "address"),
    [
        ({"host": "registry", "port": 8081}, "http://registry:8081"),
        ({"host": "registry", "schema": "https"}, "https://registry"),
        ({"host": "https://registry/apis/ccompat/v7/", "port": 8443}, "https://registry:8443/apis/ccompat/v7"),
        ({"host": "http://registry:8081"}, "http://registry:8081"),
    ],
)
def test_the_address_is_one_field_or_several(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], address: str
) -> None:
    """As Airflow's own HTTP connections have it."""
    found = made(monkeypatch, login="reader", password=SECRET, extra={"ssl.ca.location": "/ca.pem"}, **values)
    assert (found.host, found.user, found.password) == (address, "reader", SECRET)
    assert found.options == {"ssl.ca.location": "/ca.pem"}
    assert SECRET not in repr(found)


@pytest.mark.parametrize("host", ["", "ftp://registry", "http://reader:pw@registry", "https://"])
def test_what_is_no_address_is_refused(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """A login within the address would reach sentences and logs."""
    with pytest.raises(InvalidDeclaration, match="host") as caught:
        made(monkeypatch, host=host)
    assert "reader:pw" not in str(caught.value)


def test_a_token_is_taken_without_the_end_of_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are pasted from files; of a login's password any character can be sent."""
    assert made(monkeypatch, host="registry", password=f" {SECRET}\r\n").password == SECRET
    assert made(monkeypatch, host="registry", login="reader", password="pä\n").password == "pä"


@pytest.mark.parametrize("inner", ["\n", "\x7f", "é", "\u2028"])
def test_a_token_that_no_header_holds_is_refused(monkeypatch: pytest.MonkeyPatch, inner: str) -> None:
    """Without quoting it."""
    with pytest.raises(InvalidDeclaration, match="cannot be a bearer token") as caught:
        made(monkeypatch, host="registry", password=f"{SECRET}{inner}x")
    assert SECRET not in str(caught.value)


def test_a_registry_s_login_never_goes_to_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes with the source's endpoint, and leaves it where that travels."""
    made(monkeypatch, host="registry", login="reader", password=SECRET)
    declared = KafkaSource(conn_id="events", topic="orders", value=Avro(registry_conn_id="registry"))
    found = with_related(NOWHERE, declared)
    assert found.related["registry"].password == SECRET
    assert SECRET not in repr(found)
    assert not found.for_executors().related
    assert SECRET not in endpoints_to_json({"events": found})
    assert SECRET not in json.dumps(plain(declared))


def test_a_declaration_comes_back_from_the_ledger() -> None:
    """With the formats of keys and values, which are declarations of their own."""
    value = Avro(registry_conn_id="registry", subject="shop.Order", raw=("at",), names={"key": "id"})
    declared = KafkaSource(conn_id="events", topic="orders", value=value, key=Avro(registry_conn_id="registry"))
    assert from_plain(json.loads(json.dumps(plain(declared)))) == declared
