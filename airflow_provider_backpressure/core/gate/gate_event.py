"""A numbered change of a hydration's gate, on its way from the ledger's writer to the tasks that wait at the gate.

Nothing depends on its arrival: it says that looking is worth while, and the ledger decides.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_backpressure.core.gate.hydration_record import Phase
from airflow_provider_backpressure.exceptions import InvalidDeclaration

FORMAT = 1
"""Version of the frame. A reader ignores every other one, and polls meanwhile."""
_TYPES: Mapping[str, tuple[type, ...]] = {
    "phase": (str,),
    "credits": (int,),
    "slots": (int, type(None)),
    "waiting": (int,),
    "commit_seconds": (int, float, type(None)),
    "range_memory_bytes": (int, type(None)),
    "paused_by": (str, type(None)),
    "paused_why": (str, type(None)),
}
CHANGED = tuple(_TYPES)
"""Fields of the gate's state that a diff may carry, beside the ranges in flight."""


class Unreadable(InvalidDeclaration):
    """A frame of another program, or a broken one."""


class UnknownFormat(Unreadable):
    """A frame of another generation of this software."""


@dataclass(frozen=True, kw_only=True)
class Diff:
    """What one write of the ledger has changed at a hydration's gate."""

    hydration_id: str
    number: int
    """Each change of a hydration's gate has the number after the one before."""
    moment: float
    """When it was written, in seconds since 1970 by the clock of its writer."""
    changes: Mapping[str, Any] | None = field(default_factory=dict)
    """New values of fields among :data:`CHANGED`; ``None`` where they are not sent and have to be read."""
    in_flight: int = 0
    """How many more ranges hold a credit than before; negative where credits came back."""
    seq: int | None = None
    """The range that it is about, if it is about one."""
    origin: str = ""
    """The process that published it."""


def encode(diff: Diff, *, limit: int | None = None) -> bytes:
    """Return the frame of a diff. One that would not fit into ``limit`` bytes has its number only."""
    body: dict[str, Any] = {"v": FORMAT, "h": diff.hydration_id, "n": diff.number, "t": diff.moment, "o": diff.origin}
    if diff.changes is not None:
        changes = {name: value.value if isinstance(value, Phase) else value for name, value in diff.changes.items()}
        body |= {"c": changes, "f": diff.in_flight, "s": diff.seq}
    frame = json.dumps(body, separators=(",", ":")).encode()
    if limit is None or len(frame) <= limit or diff.changes is None:
        return frame
    return encode(replace(diff, changes=None))


def decode(frame: bytes) -> Diff:
    """Return the diff of a frame; :class:`Unreadable` where there is none, :class:`UnknownFormat` for another version.

    A field that this generation does not know makes the whole of it one that has to be read.
    """
    try:
        body = json.loads(frame)
        version = body["v"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Unreadable("A message on the channel is not one of this package, or was cut off.") from error
    if version != FORMAT:
        raise UnknownFormat(
            f"A message on the channel has the format {version!r:.20}, and this software knows {FORMAT}."
        )
    try:
        return Diff(
            hydration_id=_is(body["h"], str),
            number=_is(body["n"], int),
            moment=_finite(body["t"]),
            origin=_is(body["o"], str),
            changes=_changes(body.get("c")),
            in_flight=_is(body.get("f", 0), int),
            seq=_is(body.get("s"), int, type(None)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Unreadable("A message on the channel is broken.") from error


def _changes(found: Any) -> dict[str, Any] | None:
    if found is None or set(_is(found, dict)) - set(CHANGED):
        return None
    changes = {name: _is(value, *_TYPES[name]) for name, value in found.items()}
    return changes | ({"phase": Phase(changes["phase"])} if "phase" in changes else {})


def _is(value: Any, *kinds: type) -> Any:
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise TypeError(f"{type(value).__name__} instead of {kinds}")
    return value


def _finite(value: Any) -> float:
    if not math.isfinite(_is(value, int, float)):
        raise ValueError("no moment")
    return float(value)
