"""Protobuf messages of a batch as columns: each step reads one field of all messages in which it is the next.

Writers put fields in the order of their numbers, so there are about as many steps as fields. Messages in which it is
another way are named, to be put in order and read again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy
import pyarrow
import pyarrow.compute as pc

from airflow_provider_backpressure.connectors.kafka.protobuf_schema import (
    DATE,
    DURATION,
    TIMESTAMP,
    TYPED,
    WRAPPERS,
    Enum,
    Field,
    Message,
    column_type,
)
from airflow_provider_backpressure.connectors.kafka.tasks.avro_to_json import Malformed
from airflow_provider_backpressure.connectors.kafka.tasks.message_buffer import (
    Messages,
    Rows,
    fold_sign,
    take,
    to_texts,
)
from airflow_provider_backpressure.connectors.kafka.tasks.protobuf_to_json import (
    FIRST_SECOND,
    LAST_SECOND,
    MOST_SECONDS,
    NANOS,
    default_text,
    describe_unknown,
    read_message,
    read_run,
    zero_of,
)
from airflow_provider_backpressure.spark.arrow_buffers import numbers, of_bytes, of_numbers
from airflow_provider_backpressure.spark.column_types import carrier

_MICROS, _DAY = 10**6, 86_400
_SPARE = 8
"""Steps beyond two for each field, before messages are put in order instead."""
_FINER = (
    "it has digits below the microsecond, which no target holds: name its field in raw= of the format to take the text"
)


@dataclass(frozen=True, kw_only=True)
class Scan:
    """Reads the fields of a message, of many messages at once."""

    messages: Messages
    message: Message
    raw: Sequence[str] = ()
    ordered: bool = False
    """Whether each field is known to be there once, so that nothing is left to be put in order."""
    _pieces: dict[int, list[tuple[Rows, pyarrow.Array]]] = field(default_factory=dict)
    _seen: dict[object, numpy.ndarray] = field(default_factory=dict)

    def read(self, rows: Rows) -> Rows:
        """Read these messages up to their ends; return those that have to be put in order first, to be read again."""
        messages, pending = self.messages, numpy.empty(0, "i8")
        tags = numpy.empty(0, "u8")
        doubtful: list[Rows] = []
        next_, most = rows, 2 * len(self.message.fields) + _SPARE
        while True:
            next_ = next_[messages.at[next_] < messages.end[next_]]
            if len(next_):
                found = messages.varints(next_)
                pending, tags = (numpy.concatenate(both) for both in ((pending, next_), (tags, found)))
            if not len(pending):
                break
            most -= 1
            if most < 0 and not self.ordered:
                doubtful.append(pending)
                messages.at[pending] = messages.end[pending]
                break
            tag = int(tags.min())
            here = tags == tag
            next_ = pending if here.all() else pending[here]
            pending, tags = pending[~here], tags[~here]
            # Texts are cut out of the buffer in one go, for which positions have to rise.
            next_ = numpy.sort(next_)
            self._step(tag, next_, doubtful)
        return numpy.unique(numpy.concatenate(doubtful)) if doubtful else numpy.empty(0, "i8")

    def _step(self, tag: int, rows: Rows, doubtful: list[Rows]) -> None:
        """Read a field of the messages in which it is the next."""
        messages, each = self.messages, self.message.by_tag.get(tag)
        # A message whose tag was cut off has no next field.
        rows = rows[~messages.refused[rows]]
        if each is None:
            messages.refuse(rows, describe_unknown(self.message, tag))
            return
        again = self._note(each, rows)
        if again is not None:
            doubtful.append(rows[again])
            messages.at[rows[again]] = messages.end[rows[again]]
            rows = rows[~again]
        if len(rows):
            self._pieces.setdefault(each.number, []).append((rows, self._value(each, tag, rows)))

    def _note(self, each: Field, rows: Rows) -> numpy.ndarray | None:
        """Return which messages have had this field, or another one of its oneof; of single values the last counts."""
        what: object = each.oneof or (each.number if each.repeated or each.kind == "message" else None)
        if what is None:
            return None
        seen = self._seen.get(what)
        if seen is None:
            seen = self._seen[what] = numpy.zeros(len(self.messages.payloads), bool)
        again: numpy.ndarray = seen[rows]
        seen[rows] = True
        return again if again.any() else None

    def _value(self, each: Field, tag: int, rows: Rows) -> pyarrow.Array:
        if each.repeated:
            return _read_lists(self.messages, each, tag, rows)
        if each.message is not None:
            return _read_message(self.messages, each, rows, raw=each.name in self.raw)
        if each.enum is not None:
            return _read_enums(self.messages, each.enum, rows, raw=each.name in self.raw)
        return _SCALARS[each.kind](self.messages, rows)

    def column(self, each: Field) -> pyarrow.Array:
        """Return a field of all messages."""
        pieces, count = self._pieces.get(each.number, []), len(self.messages.payloads)
        if len(pieces) == 1 and len(pieces[0][0]) == count:
            return pieces[0][1]
        places, taken = numpy.zeros(count, "i8"), 1
        for rows, _ in pieces:
            places[rows] = numpy.arange(taken, taken + len(rows))
            taken += len(rows)
        whole = pyarrow.concat_arrays(
            [default_column(each, raw=each.name in self.raw), *(array for _, array in pieces)]
        )
        return whole.take(of_numbers(places, pyarrow.int64()))

    def check_required(self, rows: Rows) -> None:
        """Refuse messages that lack a field which has to be there."""
        for each in self.message.fields:
            if each.required:
                there = numpy.zeros(len(self.messages.payloads), bool)
                for found, _ in self._pieces.get(each.number, []):
                    there[found] = True
                absent = rows[~there[rows]]
                reason = f"field {each.name} of message {self.message.name} is required and not there"
                self.messages.refuse(absent, reason)


def default_column(each: Field, *, raw: bool) -> pyarrow.Array:
    """Return the one value that a field has where it is not set."""
    type_ = carrier(column_type(each, raw=raw))[0]
    if each.presence:
        return pyarrow.nulls(1, type_)
    if each.repeated:
        return of_bytes([default_text(each).encode()], type_)
    if each.enum is not None and not raw:
        return of_bytes([zero_of(each.enum).encode()], type_)
    if pyarrow.types.is_string(type_) or pyarrow.types.is_binary(type_):
        return of_bytes([b""], type_)
    zero = dict(each.enum.values).get(zero_of(each.enum), 0) if each.enum is not None else 0
    return pyarrow.Array.from_buffers(type_, 1, [None, pyarrow.py_buffer(zero.to_bytes(16, "little", signed=True))])


def _read_lists(messages: Messages, each: Field, tag: int, rows: Rows) -> pyarrow.Array:
    """Read lists and maps as JSON text, message by message."""
    texts: list[bytes | None] = []
    for row, base, at, end in zip(*_positions(messages, rows), strict=True):
        try:
            text, behind = read_run(each, messages.payloads[row], at - base, end - base, tag)
        except Malformed as error:
            messages.refuse(numpy.array([row]), str(error))
            texts.append(None)
            continue
        messages.at[row] = base + behind
        texts.append(text.encode())
    return of_bytes(texts, pyarrow.string())


def _positions(messages: Messages, rows: Rows) -> tuple[list[int], list[int], list[int], list[int]]:
    return rows.tolist(), messages.base[rows].tolist(), messages.at[rows].tolist(), messages.end[rows].tolist()


def _read_message(messages: Messages, each: Field, rows: Rows, *, raw: bool) -> pyarrow.Array:
    message = each.message
    assert message is not None, "a field of a message has one"
    start = messages.skip_bytes(rows, messages.sizes(rows))
    # raw= is about what a type means. A wrapper only makes its value absent, so it is read in any case.
    if message.name in WRAPPERS or (message.name in TYPED and not raw):
        return _read_within(messages, message, rows, start)
    texts: list[bytes | None] = []
    form = _RAW_FORMS.get(message.name) if raw else None
    bases, ends = messages.base[rows].tolist(), messages.at[rows].tolist()
    for row, base, first, end in zip(rows.tolist(), bases, start.tolist(), ends, strict=True):
        try:
            text = read_message(message, messages.payloads[row], first - base, end - base)
            texts.append((form(text) if form else text).encode())
        except Malformed as error:
            messages.refuse(numpy.array([row]), str(error))
            texts.append(None)
    return of_bytes(texts, pyarrow.string())


def _unquote(text: str) -> str:
    return text[1:-1]


_RAW_FORMS: dict[str, Callable[[str], str]] = {TIMESTAMP: _unquote, DURATION: _unquote}


def _read_within(messages: Messages, message: Message, rows: Rows, start: numpy.ndarray) -> pyarrow.Array:
    """Read a message within these, whose end is where they are now."""
    behind, outer = messages.at[rows], messages.end[rows]
    messages.at[rows], messages.end[rows] = start, behind
    scan = Scan(messages=messages, message=message, ordered=True)
    scan.read(rows)
    messages.at[rows], messages.end[rows] = behind, outer
    bad = messages.refused[rows]
    messages.at[rows[bad]] = outer[bad]
    at = of_numbers(rows.astype("i8"), pyarrow.int64())
    parts = [scan.column(each).take(at) for each in message.fields]
    if message.name in WRAPPERS:
        return parts[0]
    return _MESSAGES[message.name](messages, rows, *(numbers(each).astype("i8") for each in parts))


def _to_timestamps(messages: Messages, rows: Rows, seconds: numpy.ndarray, nanos: numpy.ndarray) -> pyarrow.Array:
    wrong = (seconds < FIRST_SECOND) | (seconds > LAST_SECOND) | (nanos < 0) | (nanos >= NANOS)
    seconds = _refuse(messages, rows, wrong, "a time is outside of the years 1 to 9999", seconds)
    micros = seconds * _MICROS + _to_micros(messages, rows, nanos)
    return of_numbers(micros, pyarrow.timestamp("us", tz="UTC"))


def _to_micros(messages: Messages, rows: Rows, nanos: numpy.ndarray) -> numpy.ndarray:
    micros = nanos // 1000
    _refuse(messages, rows, micros * 1000 != nanos, _FINER, micros)
    return micros


def _refuse(messages: Messages, rows: Rows, wrong: numpy.ndarray, reason: str, value: numpy.ndarray) -> numpy.ndarray:
    """Refuse some messages, and return the values with zero in their place."""
    if not wrong.any():
        return value
    messages.refuse(rows[wrong], reason)
    return numpy.where(wrong, value.dtype.type(0), value)


def _to_intervals(messages: Messages, rows: Rows, seconds: numpy.ndarray, nanos: numpy.ndarray) -> pyarrow.Array:
    """Return durations as PostgreSQL prints them, so that a verification finds the same text in the target."""
    # The lowest number of 64 bits has no absolute value.
    wrong = (seconds < -MOST_SECONDS) | (seconds > MOST_SECONDS)
    wrong |= (abs(nanos) >= NANOS) | (numpy.sign(seconds) * numpy.sign(nanos) < 0)
    seconds = _refuse(messages, rows, wrong, "a duration is outside of its bounds", seconds)
    micros = seconds * _MICROS + _to_micros(messages, rows, nanos)
    hours, rest = numpy.divmod(abs(micros), 3600 * _MICROS)
    clock = of_numbers(rest, pyarrow.time64("us")).cast(pyarrow.string())
    clock = pc.utf8_rtrim(pc.utf8_rtrim(pc.utf8_slice_codeunits(clock, 2), "0"), ".")
    texts = pc.utf8_lpad(of_numbers(hours, pyarrow.int64()).cast(pyarrow.string()), 2, "0")
    signs = of_bytes([b"", b"-"], pyarrow.string()).take(of_numbers((micros < 0).astype("i8"), pyarrow.int64()))
    return pc.binary_join_element_wise(signs, texts, clock, "")


def _to_dates(
    messages: Messages, rows: Rows, year: numpy.ndarray, month: numpy.ndarray, day: numpy.ndarray
) -> pyarrow.Array:
    wrong = (year < 1) | (year > 9999) | (month < 1) | (month > 12) | (day < 1) | (day > 31)
    year, month = (numpy.where(wrong, 1, each) for each in (year, month))
    months = ((year - 1970) * 12 + month - 1).astype("M8[M]")
    days = months.astype("M8[D]").astype("i8") + numpy.where(wrong, 1, day) - 1
    wrong |= days.astype("M8[D]").astype("M8[M]") != months
    reason = "a date is no whole day of the years 1 to 9999: name its field in raw= of the format to take its parts"
    return of_numbers(_refuse(messages, rows, wrong, reason, days).astype("i4"), pyarrow.date32())


_MESSAGES: dict[str, Callable[..., pyarrow.Array]] = {
    TIMESTAMP: _to_timestamps,
    DURATION: _to_intervals,
    DATE: _to_dates,
}


def _read_enums(messages: Messages, enum: Enum, rows: Rows, *, raw: bool) -> pyarrow.Array:
    value = messages.varints(rows).view("i8")
    if raw:
        return _int32(messages, rows, value)
    known = numpy.array(sorted(enum.by_number), "i8")
    places = numpy.minimum(numpy.searchsorted(known, value), len(known) - 1)
    for number in numpy.unique(value[known[places] != value]).tolist():
        messages.refuse(rows[value == number], f"enum {enum.name} has no number {number}")
    names = of_bytes([enum.by_number[number].encode() for number in known.tolist()], pyarrow.string())
    return names.take(of_numbers(places, pyarrow.int64()))


def _int32(messages: Messages, rows: Rows, value: numpy.ndarray) -> pyarrow.Array:
    wrong = (value < -(2**31)) | (value >= 2**31)
    return of_numbers(_refuse(messages, rows, wrong, _WIDE, value).astype("i4"), pyarrow.int32())


_WIDE = "a number has more than 32 bits"


def _read_int32(messages: Messages, rows: Rows) -> pyarrow.Array:
    return _int32(messages, rows, messages.varints(rows).view("i8"))


def _read_sint32(messages: Messages, rows: Rows) -> pyarrow.Array:
    return _int32(messages, rows, fold_sign(messages.varints(rows)))


def _read_uint32(messages: Messages, rows: Rows) -> pyarrow.Array:
    value = messages.varints(rows).view("i8")
    wrong = (value < 0) | (value >= 2**32)
    return of_numbers(_refuse(messages, rows, wrong, _WIDE, value), pyarrow.int64())


def _read_int64(messages: Messages, rows: Rows) -> pyarrow.Array:
    return of_numbers(messages.varints(rows).view("i8"), pyarrow.int64())


def _read_sint64(messages: Messages, rows: Rows) -> pyarrow.Array:
    return of_numbers(messages.longs(rows), pyarrow.int64())


def _read_uint64(messages: Messages, rows: Rows) -> pyarrow.Array:
    return _to_decimals(messages.varints(rows))


def _to_decimals(value: numpy.ndarray) -> pyarrow.Array:
    words = numpy.zeros((len(value), 2), "u8")
    words[:, 0] = value
    return of_numbers(words, pyarrow.decimal128(20, 0))


def _read_bools(messages: Messages, rows: Rows) -> pyarrow.Array:
    value = messages.varints(rows)
    value = _refuse(messages, rows, value > 1, "a boolean is neither 0 nor 1", value)
    return of_numbers(value.astype("u1"), pyarrow.uint8()).cast(pyarrow.bool_())


def _words(messages: Messages, rows: Rows, size: int) -> numpy.ndarray:
    found: numpy.ndarray = messages.words[f"<u{size}"][messages.skip_bytes(rows, size)]
    return found


def _read_bytes(messages: Messages, rows: Rows) -> pyarrow.Array:
    return take(messages, messages.skip_bytes(rows, messages.sizes(rows)), rows)


def _read_texts(messages: Messages, rows: Rows) -> pyarrow.Array:
    return to_texts(messages, _read_bytes(messages, rows), rows)


_SCALARS: dict[str, Callable[[Messages, Rows], pyarrow.Array]] = {
    "int32": _read_int32,
    "sint32": _read_sint32,
    "uint32": _read_uint32,
    "int64": _read_int64,
    "sint64": _read_sint64,
    "uint64": _read_uint64,
    "bool": _read_bools,
    "string": _read_texts,
    "bytes": _read_bytes,
    "float": lambda messages, rows: of_numbers(_words(messages, rows, 4), pyarrow.float32()),
    "double": lambda messages, rows: of_numbers(_words(messages, rows, 8), pyarrow.float64()),
    "sfixed32": lambda messages, rows: of_numbers(_words(messages, rows, 4), pyarrow.int32()),
    "fixed32": lambda messages, rows: of_numbers(_words(messages, rows, 4).astype("i8"), pyarrow.int64()),
    "sfixed64": lambda messages, rows: of_numbers(_words(messages, rows, 8), pyarrow.int64()),
    "fixed64": lambda messages, rows: _to_decimals(_words(messages, rows, 8)),
}
"""Readers of single values by their type."""
