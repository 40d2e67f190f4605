"""Questions to a schema registry of Confluent's interface. Only the planning side asks: tasks get what they need along.

Asked by httpx, which every Airflow has: a few questions need no client library.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import SourceRefused, SourceUnavailable, strip_frames

if TYPE_CHECKING:
    import httpx

SECONDS = 10.0
"""Longest wait for an answer."""
AVRO, JSON, PROTOBUF = "AVRO", "JSON", "PROTOBUF"
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"
_MISSING, _LOGIN, _BUSY = 404, (401, 403), (408, 429)
_SERVER = 500


@dataclass(frozen=True, kw_only=True)
class Version:
    """One version of a subject."""

    id: int
    """The registry's number of the schema, which records carry."""
    number: int
    """The version within its subject."""
    type: str
    """``AVRO``, ``JSON`` or ``PROTOBUF``."""
    schema: str
    references: tuple[tuple[str, str], ...] = ()
    """Name and text of each schema that it names, each behind those that it names itself."""


@dataclass(frozen=True, kw_only=True)
class Registry:
    """The way to a registry. Errors: ``SourceRefused``, ``SourceUnavailable``."""

    endpoint: Endpoint

    def versions(self, subject: str) -> tuple[Version, ...]:
        """Return every version of a subject, the oldest first, and the latest last: the newest that is not deleted.

        Versions that were deleted softly are among them, because records may have their schemas.
        """
        path = f"subjects/{_part(subject)}/versions"
        with self._client() as client:
            numbers = self._ask(client, f"{path}?deleted=true", f"no subject {subject}")
            kept = self._ask(client, path, f"no version of {subject} that is not deleted")
            try:
                numbers = sorted(map(int, numbers))
                latest = max(set(kept).intersection(numbers), default=None)
                found = (
                    self._ask(client, f"{path}/{number}?deleted=true", f"no version {number} of {subject}")
                    for number in sorted(numbers, key=lambda number: bool(number == latest))
                )
                return () if latest is None else tuple(self._version(client, value) for value in found)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise self._strange_answer("other JSON") from error

    def types(self) -> tuple[str, ...]:
        """Return the types of schemas that it holds, as ``AVRO``."""
        with self._client() as client:
            found = self._ask(client, "schemas/types", "no list of the types of its schemas")
        if not isinstance(found, list):
            raise self._strange_answer("other JSON")
        return tuple(sorted(map(str, found)))

    def _version(self, client: "httpx.Client", value: dict[str, Any]) -> Version:
        named: dict[tuple[str, int], tuple[str, str]] = {}
        self._collect(client, value, named)
        return Version(
            id=int(value["id"]),
            number=int(value["version"]),
            type=str(value.get("schemaType") or AVRO),
            schema=str(value["schema"]),
            references=tuple(named.values()),
        )

    def _collect(
        self, client: "httpx.Client", value: dict[str, Any], named: dict[tuple[str, int], tuple[str, str]]
    ) -> None:
        """Add what a schema names, and before it what that names in turn."""
        for each in value.get("references") or ():
            place = str(each["subject"]), int(each["version"])
            if place in named:
                continue
            path = f"subjects/{_part(place[0])}/versions/{place[1]}?deleted=true"
            found = self._ask(client, path, f"no version {place[1]} of {place[0]}, which is named as a reference")
            self._collect(client, found, named)
            named[place] = str(each["name"]), str(found["schema"])

    def _ask(self, client: "httpx.Client", path: str, missing: str) -> Any:
        import httpx

        answer = None
        try:
            answer = client.get(path)
        except httpx.LocalProtocolError:
            pass  # Its text holds the header that cannot be sent, with the token.
        except httpx.HTTPError as error:
            raise SourceUnavailable(
                f"The schema registry at {self._where} does not answer: {_words(error)}."
            ) from strip_frames(error)
        if answer is None:
            raise SourceRefused(self._unfit)
        status = answer.status_code
        if status == _MISSING:
            raise SourceRefused(f"The schema registry at {self._where} has {missing}.")
        if status in _LOGIN:
            who = self.endpoint.user or "us"
            raise SourceRefused(f"The schema registry at {self._where} does not let {who} in (HTTP {status}).")
        if status >= _SERVER or status in _BUSY:
            raise SourceUnavailable(f"The schema registry at {self._where} does not answer: HTTP {status}.")
        with suppress(ValueError):
            if answer.is_success:
                return answer.json()
        raise self._strange_answer(f"HTTP {status}")

    def _strange_answer(self, what: str) -> SourceRefused:
        return SourceRefused(
            f"What answers at {self._where} is no schema registry of Confluent's interface ({what}): name the "
            "whole address of that interface in the connection."
        )

    @contextmanager
    def _client(self) -> "Iterator[httpx.Client]":
        import httpx

        place = self.endpoint
        headers = {"Accept": _ACCEPT}
        login = None
        if place.user:
            login = httpx.BasicAuth(place.user, place.password)
        elif not place.password.isascii():
            raise SourceRefused(self._unfit)
        elif place.password:
            headers["Authorization"] = f"Bearer {place.password}"
        try:
            with httpx.Client(
                base_url=place.host, auth=login, headers=headers, timeout=SECONDS, verify=_tls(place)
            ) as client:
                yield client
        except (OSError, httpx.InvalidURL) as error:
            raise SourceRefused(
                f"The settings of {self._where} are none that a client takes: {_words(error)}."
            ) from strip_frames(error)

    @property
    def _where(self) -> str:
        return f"{self.endpoint.host} (connection {self.endpoint.conn_id})"

    @property
    def _unfit(self) -> str:
        return (
            f"The schema registry at {self._where} cannot be asked: a request cannot hold the connection's password. "
            "Paste it without ends of lines and special characters."
        )


def _tls(place: Endpoint) -> Any:
    import ssl

    options = place.options
    if not options:
        return True
    context = ssl.create_default_context(cafile=options.get("ssl.ca.location"))
    if options.get("ssl.certificate.location"):
        # Without a password, OpenSSL would ask a person for that of a key that has one.
        password = place.secrets.get("ssl.key.password", "")
        context.load_cert_chain(options["ssl.certificate.location"], options.get("ssl.key.location"), password)
    return context


def _part(name: str) -> str:
    return quote(name, safe="")


def _words(error: Exception) -> str:
    return " ".join(str(error).split()).removesuffix(".") or type(error).__name__
