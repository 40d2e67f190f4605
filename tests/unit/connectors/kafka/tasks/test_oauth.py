"""Logins by OAuth: tokens for kafka-python, and files that a client cannot load."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_backpressure.connectors.kafka import connect
from airflow_provider_backpressure.connectors.kafka.errors import Failure, Heard, translate_error
from airflow_provider_backpressure.connectors.kafka.tasks import kafka_python_client, oauth
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import InvalidDeclaration, SourceRefused, SourceUnavailable
from tests.support.certificates import Authority
from tests.support.oauth import TokenServer, serving

pytestmark = pytest.mark.statement("R6")

SECRET = "s3cret-word"


@pytest.fixture
def tokens() -> Iterator[TokenServer]:
    """A server of tokens that knows one client."""
    with serving({"reader": SECRET}) as server:
        yield server


def place(url: str, password: str = SECRET, **changes: Any) -> Endpoint:
    """Return a broker's endpoint with a login by OAuth."""
    options = {
        "sasl.mechanism": "OAUTHBEARER",
        oauth.METHOD: "oidc",
        oauth.TOKENS: url,
        oauth.SCOPE: "kafka",
        **changes.pop("options", {}),
    }
    return Endpoint(
        conn_id="c",
        host="127.0.0.1:9",
        port=0,
        database="",
        user="reader",
        password=password,
        options=options,
        **changes,
    )


def test_a_token_is_kept_for_most_of_its_life(tokens: TokenServer) -> None:
    """R6: connections share it, and a new one is fetched before it ends."""
    now = [1000.0]
    tokens.seconds = 100.0
    provider = oauth.token_provider(place(tokens.url), lambda: now[0])
    assert {provider.token() for _ in range(3)} == set(tokens.issued)
    now[0] += 81
    assert provider.token() == tokens.issued[1]
    assert (len(tokens.issued), tokens.scopes) == (2, {"kafka"})


@pytest.mark.parametrize(
    ("path", "password", "error", "words"),
    [
        ("/token", "wrong-word", SourceRefused, "gives reader no token: HTTP 401"),
        ("/moved", SECRET, SourceRefused, "gives reader no token: HTTP 302"),
        ("/busy", SECRET, SourceUnavailable, "gives reader no token: HTTP 503"),
        ("/strange", SECRET, SourceUnavailable, "something that holds no token"),
        (":9", SECRET, SourceUnavailable, "does not answer: .*refused"),
    ],
)
def test_why_there_is_no_token_is_one_sentence(
    tokens: TokenServer, path: str, password: str, error: type[Exception], words: str
) -> None:
    """R6: without the secret, which goes to no other address."""
    base = "http://127.0.0.1" if path.startswith(":") else tokens.url.removesuffix("/token")
    with pytest.raises(error, match=words) as raised:
        kafka_python_client.settings(place(f"{base}{path}", password), "task")
    assert password not in str(raised.value)
    assert "\n" not in str(raised.value)
    assert tokens.issued == []


def test_what_kafka_python_lacks_is_refused_before_a_token_is_fetched(tokens: TokenServer) -> None:
    """R6: by name, without a value."""
    with pytest.raises(InvalidDeclaration, match=r"hold sasl\.oauthbearer\.extensions, ssl\.key\.pem, which") as raised:
        kafka_python_client.settings(
            place(tokens.url, secrets={"ssl.key.pem": SECRET, "sasl.oauthbearer.extensions": SECRET}), "task"
        )
    assert SECRET not in str(raised.value)
    assert tokens.issued == []


def test_settings_of_kafka_python(tokens: TokenServer) -> None:
    """R6: the login is its token's, and a key has its password, or none that a person would be asked for."""
    files = {"ssl.key.location": "/key.pem"}
    found = kafka_python_client.settings(
        place(tokens.url, options=files, secrets={"ssl.key.password": "of-key"}), "task"
    )
    assert (found["sasl_mechanism"], found["ssl_keyfile"], found["ssl_password"]) == (
        "OAUTHBEARER",
        "/key.pem",
        "of-key",
    )
    assert found["sasl_oauth_token_provider"].token() == tokens.issued[0]
    assert SECRET not in repr(found)
    assert kafka_python_client.settings(place(tokens.url, options=files), "task")["ssl_password"] == ""


def hear(endpoint: Endpoint) -> Heard:
    """Return what librdkafka says of a login, as soon as it says something."""
    until = time.monotonic() + 10
    with connect.admin(endpoint) as (client, heard):
        while heard.login is None and heard.last is None and time.monotonic() < until:
            client.poll(0.05)
        return heard


PLAIN = {"security.protocol": "SASL_PLAINTEXT"}


def test_a_token_endpoint_that_is_not_reached_refuses_nothing() -> None:
    """R6: a client that has a token continues with it, and one that has none is repeated."""
    endpoint = place("http://127.0.0.1:9/token", options=PLAIN)
    heard = hear(endpoint)
    assert heard.login is None
    late = translate_error(Failure("_TIMED_OUT", "nothing came"), endpoint, heard=heard)
    assert isinstance(late, SourceUnavailable)
    assert "does not answer: Failed to acquire SASL OAUTHBEARER token: " in str(late)


def test_a_token_endpoint_that_refuses_ends_the_login(tokens: TokenServer) -> None:
    """R6: at once, since librdkafka would try it again for ever."""
    endpoint = place(tokens.url, "wrong-word", options=PLAIN)
    heard = hear(endpoint)
    assert heard.login is not None
    assert isinstance(translate_error(heard.login, endpoint), SourceRefused)


def test_the_host_s_authorities_are_those_of_a_token_endpoint(
    tokens: TokenServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R6: wherever the host has them; a connection may name others."""
    url = tokens.url.replace("http:", "https:")
    Authority.made(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    heard = hear(place(url, options=PLAIN))
    assert heard.login is not None
    # It came to TLS, which this server does not speak.
    assert "wrong version number" in heard.login.str()
    monkeypatch.delenv("SSL_CERT_FILE")
    missing = {**PLAIN, "https.ca.location": str(tmp_path / "missing.pem")}
    with pytest.raises(InvalidDeclaration, match="are none that a client takes"):
        hear(place(url, options=missing))


def open_producer(endpoint: Endpoint) -> None:
    """As the channel does."""
    connect.producer(endpoint, "test")


def open_consumer(endpoint: Endpoint) -> None:
    """As a task does."""
    with connect.consumer(endpoint, "test"):
        pass


def open_admin(endpoint: Endpoint) -> None:
    """As the planner does."""
    with connect.admin(endpoint):
        pass


@pytest.mark.parametrize("password", ["wrong-word", ""])
@pytest.mark.parametrize("client", [open_admin, open_consumer, open_producer])
def test_a_key_that_cannot_be_opened_ends_no_process(
    tmp_path: Path, client: Callable[[Endpoint], None], password: str
) -> None:
    """R6: librdkafka would abort, with the login by OAuth, instead of returning its error."""
    signed = Authority.made(tmp_path).sign("client", "of-the-key")
    options = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(tmp_path / "authority.pem"),
        "ssl.certificate.location": str(signed.certificate),
        "ssl.key.location": str(signed.key),
    }
    secrets = {"ssl.key.password": password} if password else {}
    with pytest.raises(InvalidDeclaration, match=r"are none that a client takes: .*\(ssl\.key\.location\)") as raised:
        client(place("http://127.0.0.1:9/token", options=options, secrets=secrets))
    assert "wrong-word" not in str(raised.value)
