"""Tokens by OAuth's client credentials for kafka-python, which has no such login; librdkafka fetches them itself."""

import base64
import json
import math
import ssl
import time
from collections.abc import Callable
from http.client import HTTPException
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from airflow_provider_backpressure.connectors.kafka.errors import where
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import SourceRefused, SourceUnavailable, strip_frames

METHOD, TOKENS = "sasl.oauthbearer.method", "sasl.oauthbearer.token.endpoint.url"
SCOPE, TOKEN_CA = "sasl.oauthbearer.scope", "https.ca.location"
SECONDS = 20.0
"""Longest wait for a token."""
LIFETIME = 60.0
"""Seconds for which a token is used whose answer names no lifetime."""
USED = 0.8
"""Part of a token's lifetime after which the next one is fetched, as librdkafka does."""


def token_provider(endpoint: Endpoint, now: Callable[[], float] = time.monotonic) -> Any:
    """Return what kafka-python asks for tokens. The first one is fetched at once, so that a refusal is seen.

    ``SourceRefused`` where the login is not accepted, ``SourceUnavailable`` where no token came.
    """
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Provider(AbstractTokenProvider):  # type: ignore[misc]
        """Keeps a token for most of its lifetime."""

        def __init__(self) -> None:
            self._token, self._until = "", -math.inf

        def token(self) -> str:
            moment = now()
            if moment >= self._until:
                self._token, lifetime = fetch_token(endpoint)
                self._until = moment + lifetime * USED
            return self._token

    provider = Provider()
    provider.token()
    return provider


def fetch_token(endpoint: Endpoint) -> tuple[str, float]:
    """Return a new token and its lifetime in seconds; errors as of :func:`token_provider`."""
    place = endpoint.options[TOKENS]
    of = f"The token endpoint {place} of Kafka at {where(endpoint)}"
    try:
        opener = build_opener(_NoRedirect, HTTPSHandler(context=_context(endpoint)))
        with opener.open(_request(endpoint), timeout=SECONDS) as answer:
            return _read(answer)
    except HTTPError as error:
        error.close()
        # The answer's own words could repeat the login.
        kind = SourceRefused if error.code < 500 and error.code not in (408, 429) else SourceUnavailable
        raise kind(f"{of} gives {endpoint.user} no token: HTTP {error.code}.") from strip_frames(error)
    except OSError as error:
        reason = getattr(error, "reason", error)
        refused = isinstance(reason, ssl.SSLError | FileNotFoundError)
        kind = SourceRefused if refused else SourceUnavailable
        raise kind(f"{of} does not answer: {reason}.") from strip_frames(error)
    except (HTTPException, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceUnavailable(f"{of} answers with something that holds no token.") from strip_frames(error)


def _read(answer: IO[bytes]) -> tuple[str, float]:
    """Return token and lifetime of an answer; a frame of its own, since it holds the token."""
    told = json.load(answer)
    return str(told["access_token"]), float(told.get("expires_in") or LIFETIME)


def _request(endpoint: Endpoint) -> Request:
    login = base64.b64encode(f"{endpoint.user}:{endpoint.password}".encode()).decode()
    asked = {"grant_type": "client_credentials"}
    if scope := endpoint.options.get(SCOPE):
        asked["scope"] = scope
    headers = {"Authorization": f"Basic {login}", "Accept": "application/json"}
    return Request(endpoint.options[TOKENS], urlencode(asked).encode(), headers, method="POST")


class _NoRedirect(HTTPRedirectHandler):
    """Follows nothing: the login would go to another address."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _context(endpoint: Endpoint) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=endpoint.options.get(TOKEN_CA))
