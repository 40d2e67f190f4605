"""The declaration of a Kafka topic as a source. Knows no connection and imports no driver."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.ports import Source
from airflow_provider_backpressure.exceptions import InvalidDeclaration

FORMATS = ("json", "raw")
KEYS = ("bytes", "text")
EARLIEST, LATEST = "earliest", "latest"
Start = str | datetime | Mapping[int, int] | Mapping[str, int]

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, kw_only=True)
class KafkaSource:
    """A topic, read by offsets; later runs bring the offsets that are new. Raises :class:`InvalidDeclaration`.

    Columns: ``topic``, ``partition``, ``offset``, ``timestamp``, ``key``, ``headers``, and ``value`` or the fields.
    """

    conn_types: ClassVar[tuple[str, ...]] = ("kafka",)
    """Types that the Airflow connection may be of."""
    consistencies: ClassVar[tuple[str, ...]] = (Consistency.OFFSETS,)
    """What may be asked for."""
    templated: ClassVar[tuple[str, ...]] = ("conn_id", "topic", "start")
    """Fields whose text may be a template."""

    conn_id: str
    topic: str
    format: str = "json"
    """``json``: each value is one JSON text; ``raw``: bytes as they are."""
    fields: Mapping[str, str] | None = None
    """PostgreSQL types by field of the JSON object, in the order of the columns; they stand for ``value``."""
    key: str = "bytes"
    """``bytes``, or ``text`` where every key is UTF-8."""
    start: Start = EARLIEST
    """Where the first run begins: ``earliest``, ``latest``, an aware time (a datetime or ISO text), or offsets by
    partition, of which those not named begin at their earliest."""
    accept_loss: bool = False
    """Continue where the log no longer holds what was to be read. Otherwise the run stops and names the loss."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant; templates are looked at when they are known."""
        if self.format not in FORMATS:
            raise InvalidDeclaration(f"KafkaSource.format must be one of {', '.join(FORMATS)}, not {self.format!r}.")
        if self.key not in KEYS:
            raise InvalidDeclaration(f"KafkaSource.key must be one of {', '.join(KEYS)}, not {self.key!r}.")
        if self.fields is not None and self.format != "json":
            raise InvalidDeclaration("KafkaSource.fields are those of JSON objects: they need format='json'.")
        if self.fields is not None and not self.fields:
            raise InvalidDeclaration("KafkaSource.fields must name at least one field, or be None for the whole value.")
        if isinstance(self.start, datetime):
            _aware(self.start)

    @property
    def table(self) -> str:
        """What is read, by its name."""
        return self.topic

    def open(self, endpoint: Endpoint) -> Source:
        """Return the source at this endpoint; it connects at the first question. Names and types are checked here."""
        from airflow_provider_backpressure.connectors.kafka.source.topic import KafkaTopic

        if not isinstance(self.topic, str) or not _TOPIC.fullmatch(self.topic) or self.topic in (".", ".."):
            raise InvalidDeclaration(f"{self.topic!r} is no name that a topic can have.")
        return KafkaTopic(self, endpoint)


def parse_start(start: Start) -> str | datetime | dict[int, int]:
    """Return where to begin as one of ``earliest``, ``latest``, an aware time, or offsets by partition."""
    if isinstance(start, datetime):
        return _aware(start)
    if isinstance(start, Mapping):
        return _offsets(start)
    if start in (EARLIEST, LATEST):
        return start
    try:
        time = datetime.fromisoformat(str(start).strip())
    except ValueError as error:
        raise InvalidDeclaration(
            f"KafkaSource.start must be earliest, latest, a time or offsets by partition, not {start!r}."
        ) from error
    return _aware(time)


def _offsets(start: Mapping[int, int] | Mapping[str, int]) -> dict[int, int]:
    try:
        offsets = {int(partition): int(offset) for partition, offset in start.items()}
    except (TypeError, ValueError):
        offsets = {-1: 0}
    if any(partition < 0 or offset < 0 for partition, offset in offsets.items()):
        raise InvalidDeclaration(
            "KafkaSource.start needs whole numbers from 0 on: an offset by partition, as {0: 1200}."
        )
    return offsets


def _aware(time: datetime) -> datetime:
    if time.tzinfo is None:
        raise InvalidDeclaration(f"KafkaSource.start needs a time with its zone, as 2026-01-31T00:00:00Z, not {time}.")
    return time
