"""The two paths by which rows get through Spark."""

COPY = "copy"
"""PostgreSQL to PostgreSQL as binary COPY, never decoded."""
FRAME = "frame"
"""Any source to any sink as a DataFrame of typed rows."""


def copies(source: str, sink: str) -> bool:
    """Whether rows of these kinds may pass undecoded, given that their columns are the same."""
    return source == sink == "postgres"
