"""What one application of Spark is asked for, as a message: versioned JSON without secrets."""

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from airflow_provider_backpressure.core.json_codec import from_dict
from airflow_provider_backpressure.core.snapshot.spark_messages import (
    VERSION,
    ZONE,
    ChecksumSpec,
    RangeSpec,
    ReadSpec,
    Transform,
)
from airflow_provider_backpressure.exceptions import InvalidDeclaration

RANGE, CHECKSUMS, DESCRIBE, PROBE, SESSION = "range", "checksums", "describe", "probe", "session"
HELD = "held"
"""Beside a request for :data:`SESSION`: the file that its asker holds for as long as it asks."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What one application does. It holds no secret: connections are named."""

    kind: str
    """:data:`RANGE` needs ``spec``; :data:`CHECKSUMS` ``checksums``; :data:`DESCRIBE` ``read`` and ``transform``.

    :data:`SESSION` answers questions until it is let go, see :mod:`..spark.served_session`."""
    spec: RangeSpec | None = None
    checksums: tuple[ChecksumSpec, ...] = ()
    read: ReadSpec | None = None
    transform: Transform | None = None
    modules: tuple[str, ...] = ()
    """Of :data:`PROBE`: what is looked for."""
    master: str | None = None
    """Where it runs, if not on the cluster that it was submitted to: ``local[1]``."""

    @property
    def packages(self) -> tuple[str, ...]:
        """Packages that travel with it beside our own."""
        reads = [*([self.spec.read] if self.spec else []), *(each.read for each in self.checksums if each.read)]
        return tuple(dict.fromkeys(each.package for read in reads for each in read.substitutes))

    @property
    def conn_ids(self) -> frozenset[str]:
        """Connections whose logins it needs."""
        ranges = () if self.spec is None else (self.spec.read.conn_id, self.spec.write.conn_id)
        return frozenset((*ranges, *(checksum.conn_id for checksum in self.checksums))) - {""}

    @property
    def zone(self) -> str | None:
        """The time zone of its session: that of its transform, which may not have one; UTC without a transform."""
        transform = self.spec.transform if self.spec is not None else self.transform
        return transform.zone if transform is not None else ZONE

    def to_json(self) -> str:
        """Return the message with its version."""
        spec = None if self.spec is None else self.spec.to_json()
        return json.dumps({**asdict(self), "spec": spec, "version": VERSION})

    @classmethod
    def from_json(cls, text: str) -> "Request":
        """Read a message; :class:`InvalidDeclaration` for another version or a missing field."""
        value: dict[str, Any] = json.loads(text)
        if value.pop("version", None) != VERSION:
            raise InvalidDeclaration(
                f"A request of another version than {VERSION} arrived: both sides need one release."
            )
        try:
            spec = value.pop("spec")
            return replace(from_dict(cls, value), spec=RangeSpec.from_json(spec) if spec else None)
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidDeclaration(f"This is not a request of version {VERSION}: {error}.") from error
