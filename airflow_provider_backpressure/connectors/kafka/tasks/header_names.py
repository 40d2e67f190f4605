"""Names of headers that are no UTF-8, for kafka-python: it takes a batch of records with such a name for corrupt.

The records of a consumer are taken apart by classes that it makes itself. So its own class is exchanged in one consumer
only, and each other consumer of the process stays as it is.
"""

from typing import Any

from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError


class OddName(str):
    """A header's name that is no UTF-8, with signs in place of what cannot be read."""

    __slots__ = ()


def accept_odd_names(client: Any) -> None:
    """Have a ``KafkaConsumer`` give such records, each with an :class:`OddName`."""
    client._fetcher.PartitionRecords = _PartitionRecords


class _PartitionRecords(Fetcher.PartitionRecords):  # type: ignore[misc]
    """The records that were fetched of one partition."""

    def __init__(self, fetch_offset: int, partition: Any, records: Any, **settings: Any) -> None:
        super().__init__(fetch_offset, partition, _Batches(records), **settings)


class _Batches:
    def __init__(self, records: Any) -> None:
        self._records = records

    def next_batch(self) -> Any:
        batch = self._records.next_batch()
        # Older formats have no headers.
        return _Batch(batch) if batch is not None and batch.magic >= 2 else batch


class _Batch:
    """A batch that is read again from the record on at which kafka-python found a name that it cannot decode."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __iter__(self) -> "_Batch":
        # It decompresses the records.
        iter(self._batch)
        return self

    def __next__(self) -> Any:
        try:
            return next(self._batch)
        except CorruptRecordError as error:
            if not isinstance(error.__context__, UnicodeDecodeError):
                raise
        self._batch._buffer = _Buffer(self._batch._buffer)
        return next(self._batch)


class _Buffer(bytearray):
    """Bytes of which pieces can be decoded whatever they are."""

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        return _Piece(found) if isinstance(place, slice) else found


class _Piece(bytes):
    def decode(self, *_: str) -> str:
        try:
            return super().decode()
        except UnicodeDecodeError:
            return OddName(super().decode(errors="replace"))
