"""Names of lanes: which task instance drains ranges, the same for each of its tries."""

import hashlib
import re
from dataclasses import dataclass

MAX_LANE = 250
"""Longest name of a lane; a longer one is cut and gets a digest."""
_INDEX = re.compile(r"-1|\d{1,9}")


@dataclass(frozen=True, kw_only=True)
class Drainer:
    """The run that a lane belongs to, and its task instance where the name has it."""

    dag_id: str
    run_id: str
    task_id: str | None = None
    """``None``: a lane that several tasks share, as those of a range do that has tasks of its own."""
    map_index: int = -1


def lane(dag_id: str, run_id: str, *parts: str) -> str:
    """Return the name of a lane: DAG, run, and ``parts``, which are task and map index or a name of their own."""
    name = "/".join((dag_id, run_id, *parts))
    if len(name) <= MAX_LANE:
        return name
    return f"{name[: MAX_LANE - 17]}/{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def drainer(name: str | None) -> Drainer | None:
    """Return whose lane this is; ``None`` for a name that was cut, or that is none of a DAG's run."""
    parts = (name or "").split("/")
    if len(name or "") >= MAX_LANE or len(parts) not in (3, 4):
        return None
    found = Drainer(dag_id=parts[0], run_id=parts[1])
    if len(parts) == 3:
        return found
    if not _INDEX.fullmatch(parts[3]):
        return None
    return Drainer(dag_id=parts[0], run_id=parts[1], task_id=parts[2], map_index=int(parts[3]))
