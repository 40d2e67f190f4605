"""Keys by which a table of the cluster's catalog can be mirrored: files order their values as the source does."""

import re
from collections.abc import Sequence

from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.exceptions import SinkRefused

_SAME_ORDER = re.compile(
    r"smallint|integer|bigint|date|timestamp(\(\d+\))? with(out)? time zone|bytea|uuid"
    r"|numeric\(([12]?\d|3[0-8]),\d+\)"
)
"""Types whose values Spark orders as PostgreSQL and MySQL do, in the form that files keep them in."""
_TEXT = re.compile(r"text|character varying(\(\d+\))?")
_BY_BYTES = re.compile(r"C|libc C\.utf-?8( .*)?", re.IGNORECASE)
"""Collations that order text as its bytes. Not MySQL's: they take blanks at the end for nothing."""


def check_order(name: str, columns: Sequence[Column], split: Sequence[str]) -> None:
    """Raise ``SinkRefused`` where Spark may order the values of a key otherwise than the source does.

    ``columns``: as they arrive, those of text with the source's collation.
    """
    arriving = {column.name: column for column in columns}
    ordered = [each for each in split if _SAME_ORDER.fullmatch(arriving[each].type)]
    strange = [each for each in split if each not in ordered and not _is_text(arriving[each])]
    if strange:
        types = ", ".join([arriving[each].type for each in strange])
        raise SinkRefused(
            f"{name} cannot be mirrored: files keep {', '.join(strange)} ({types}) in a form that is ordered otherwise "
            "than in the source, so its ranges would hold other rows. Cut it by another key, or use mode='upsert'."
        )
    text = [each for each in split if _is_text(arriving[each])]
    other = [each for each in text if not _BY_BYTES.fullmatch(arriving[each].collation or "")]
    if other:
        by = ", ".join(sorted({arriving[each].collation or "a collation that is not known" for each in other}))
        raise SinkRefused(
            f"{name} cannot be mirrored: text in {', '.join(other)} is ordered by {by} in the source and by its bytes "
            'in files, so its ranges would hold other rows. Give it the collation "C" in PostgreSQL, or use '
            "mode='upsert'."
        )


def _is_text(column: Column) -> bool:
    return _TEXT.fullmatch(column.type) is not None
