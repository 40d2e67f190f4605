"""A driver's errors as those of a source or of a sink, without secrets: refused for good, or unavailable for now."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import Terminal, Transient

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class DriverErrors(ABC):
    """The two errors into which a caller wants a driver's translated: those of a source, or those of a sink."""

    raised: ClassVar[tuple[type[Exception], ...]]
    """What the driver raises."""

    refused: type[Terminal]
    unavailable: type[Transient]

    @contextmanager
    def translate_errors(self, endpoint: Endpoint) -> Iterator[None]:
        """Raise every error of the driver from inside as our error, with its cause kept."""
        try:
            yield
        except self.raised as error:
            raise self.translate(error, endpoint) from error

    def translate_blocks(self, blocks: Iterable[T], endpoint: Endpoint) -> Iterator[T]:
        """Yield what is read; the errors of reading are translated."""
        waiting = iter(blocks)
        while True:
            with self.translate_errors(endpoint):
                block = next(waiting, None)
            if block is None:
                return
            yield block

    @abstractmethod
    def translate(self, error: Any, endpoint: Endpoint) -> Terminal | Transient:
        """Return the translation of a statement's error."""

    @abstractmethod
    def at_the_door(self, error: Any, endpoint: Endpoint) -> Terminal | Transient:
        """Return the translation of a failed attempt to connect."""


def where(endpoint: Endpoint) -> str:
    """Return the place for a sentence."""
    return f"{endpoint.address.rstrip('/')} (connection {endpoint.conn_id})"
