"""What the core knows of single kinds of sources and sinks. All else is said by the connectors themselves."""

COPIED = frozenset({("postgres", "postgres")})
"""Sources and sinks between which rows may pass undecoded, given that their columns are the same."""
REPLAYED = frozenset(
    {("postgres", "postgres"), ("mysql", "postgres"), ("postgres", "spark_table"), ("mysql", "spark_table")}
)
"""Databases and the sinks that take changes of their logs: a frontier alone, as some keep of a topic, is not enough."""
LARGE_WINDOWS = frozenset({"spark_table"})
"""Those of them where every window costs so much that it may have as much of the log as a range may have bytes."""
READ_AS_SOURCES = frozenset({"postgres"})
"""Sinks whose markers hash the target's own encoding, and that can be read as a source is."""
CHECKED_JSON = frozenset({"postgres"})
"""Sinks that refuse text which is no JSON by themselves."""
PARTED = frozenset({"postgres"})
"""Sinks that records of a topic may go into by several ranges of one piece of it, each with a part of the keys."""
TYPED_AS_FILES = frozenset({"delta", "iceberg", "spark_table"})
"""Sinks that can replace rows by a key, and keep a value of many types as its text."""
LOG_UNITS = {"postgres": "bytes", "mysql": "transactions"}
"""What the one log of a server counts, by the kind of source: a :class:`..core.progress.source_position.Unit`."""
