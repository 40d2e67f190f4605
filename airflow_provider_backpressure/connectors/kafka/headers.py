"""Headers of records, and those that no client can give because a name of one is no UTF-8."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from confluent_kafka import Message

Headers = Sequence[tuple[str, bytes | None]] | None
"""Names and values in their order; ``None`` where a record has none."""
UNREADABLE: Final = (("", None),)
"""In place of the headers of which a name is no UTF-8. Compare it by ``is``."""
NO_UTF8 = "a name of its headers is no UTF-8"


def list_headers(records: "Sequence[Message]") -> list[Headers]:
    """Return the headers of each record; :data:`UNREADABLE` where a name is no UTF-8.

    confluent-kafka gives a list with a hole for such a name, and an exception beside it. Python looks for the exception
    where the call comes from C, as that of ``map``. A call in Python that ran a few times already does not look: the
    hole then ends the process. So does a second call, which has no exception any more. Hence the mark in the record.
    """
    found: list[Headers] = []
    kind: Any = type(records[0]) if records else None
    while len(found) < len(records):
        try:
            # What was read before the exception stays in the list.
            found.extend(map(kind.headers, records[len(found) :]))
        except (SystemError, UnicodeDecodeError):
            records[len(found)].set_headers(UNREADABLE)
    return found
