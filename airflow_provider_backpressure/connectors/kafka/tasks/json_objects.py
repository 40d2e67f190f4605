"""Whether values of a topic are JSON objects, found out for all of a batch at once."""

import re

import numpy
import pyarrow
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from airflow_provider_backpressure.spark.arrow_buffers import of_bytes, of_numbers

_READ = {"use_threads": False}
# No field is wanted, so none is converted; one of an odd name has to be, or there would be no rows to count.
_PARSE = arrow_json.ParseOptions(
    explicit_schema=pyarrow.schema([("backpressure: nothing", pyarrow.string())]),
    unexpected_field_behavior="ignore",
)
_BEYOND = re.compile(b"NaN|Inf")
"""What Arrow's parser accepts and JSON does not have. Within a text it is allowed, which a closer check decides."""
_LINE_END = of_bytes([b"\n"], pyarrow.binary())[0]
_INITIALS = (b"N", b"I")
"""Most batches have none of them, which takes no time to see."""


def are_objects(values: pyarrow.Array) -> bool:
    """Return whether every value that is not NULL surely is one JSON object in UTF-8 and nothing else.

    Values are parsed as lines of one text. Each begins with ``{`` and ends with ``}``, so a line's end can only lie
    between two objects: within one, ``}`` is never followed by ``{``, and a text holds no end of a line. As many
    objects as values are then one in each.
    """
    present = values.drop_null()
    if not len(present):
        return True
    framed = pc.and_(pc.starts_with(present, b"{"), pc.ends_with(present, b"}"))
    if not pc.all(framed).as_py():
        return False
    lines = pyarrow.ListArray.from_arrays(of_numbers(numpy.array([0, len(present)], "i4"), pyarrow.int32()), present)
    text = pc.binary_join(lines, _LINE_END)[0].as_py()
    if any(initial in text for initial in _INITIALS) and _BEYOND.search(text):
        return False
    try:
        present.cast(pyarrow.string())
        found = arrow_json.read_json(
            pyarrow.BufferReader(text), arrow_json.ReadOptions(**_READ, block_size=len(text) + 1), _PARSE
        )
    except pyarrow.ArrowInvalid:
        return False
    return bool(found.num_rows == len(present))
