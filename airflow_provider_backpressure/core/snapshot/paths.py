"""The two paths by which rows get through Spark."""

from airflow_provider_backpressure.core.snapshot.messages import ReadSpec, Transform, WriteSpec

COPY = "copy"
"""PostgreSQL to PostgreSQL as binary COPY, never decoded."""
FRAME = "frame"
"""Any source to any sink as a DataFrame of typed rows."""
REPLAY = "replay"
"""A database's log as upserts and deletes by key, in the log's order."""


REPLAYED_INTO = frozenset({"postgres"})
"""Kinds of targets that take changes of a database's log: a frontier alone, as some keep of a topic, is not enough."""


def copies(source: str, sink: str) -> bool:
    """Whether rows of these kinds may pass undecoded, given that their columns are the same."""
    return source == sink == "postgres"


def choose_path(read: ReadSpec, write: WriteSpec, transform: Transform | None) -> str:
    """Return ``copy`` if rows may pass undecoded: same columns and types, no transform; otherwise ``frame``."""
    same = [(each.name, each.type) for each in read.columns] == [(each.name, each.type) for each in write.columns]
    return COPY if same and transform is None and copies(read.kind, write.kind) else FRAME
