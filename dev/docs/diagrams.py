"""The diagrams of the documentation. Arrows between states come from the tables that the product itself goes by."""

from collections.abc import Mapping
from enum import StrEnum
from itertools import product
from typing import NamedTuple, TypeVar

from airflow_provider_backpressure.core.admission.permits_and_reservations import gate_decision
from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.gate import hydration_record as phases
from airflow_provider_backpressure.core.gate.hydration_record import GateState
from airflow_provider_backpressure.core.gate.signals import MemoryReading
from airflow_provider_backpressure.core.transitions import hydration_transitions, range_transitions
from airflow_provider_backpressure.ledger.tables.control_log import memory_closed, to_json
from dev.docs.drawing import Arrow, Box, Diagram, Point, Room

State = TypeVar("State", bound=StrEnum)
START, END = "start", "end"
LIMIT = 1000
"""Bytes of the executor that the gate is asked about."""


class Drawn(NamedTuple):
    """How an arrow is drawn: its words, its bend, and where on it the words are."""

    words: str
    bend: float = 0
    word_at: float = 0.5


Drawing = Mapping[tuple[str, str], Drawn]

RANGE_PLACES: dict[str, Point] = {
    START: (40, 170),
    "planned": (150, 170),
    "admitted": (480, 170),
    "committed": (810, 170),
    "failed": (480, 310),
    "revoked": (480, 430),
    END: (600, 430),
}
RANGE_ARROWS: Drawing = {
    (START, "planned"): Drawn(""),
    ("planned", "admitted"): Drawn("gets a credit", 14),
    ("planned", "committed"): Drawn("its marker is found in the target", 75),
    ("planned", "revoked"): Drawn("skipped,\nor cut smaller", -60),
    ("admitted", "committed"): Drawn("the target has committed"),
    ("admitted", "planned"): Drawn("the attempt came to nothing", 22),
    ("admitted", "failed"): Drawn("attempts\nused up"),
    ("admitted", "revoked"): Drawn("cut in halves", 100, 0.62),
    ("failed", "planned"): Drawn("the task is run again"),
    ("failed", "committed"): Drawn("its marker is found", 0, 0.66),
    ("failed", "revoked"): Drawn("skipped"),
    ("committed", "planned"): Drawn("found wrong, to be read once more", -130),
    ("revoked", END): Drawn(""),
}
PHASE_PLACES: dict[str, Point] = {
    START: (40, 110),
    "hydration": (160, 110),
    "steady_state": (680, 50),
    "rehydration": (680, 170),
}
PHASE_ARROWS: Drawing = {
    (START, "hydration"): Drawn(""),
    ("hydration", "steady_state"): Drawn("every range is committed", 10),
    ("hydration", "rehydration"): Drawn("ledger rebuilt from the target, or from what was landed", -10, 0.47),
    ("steady_state", "rehydration"): Drawn("trust is lost", 50),
    ("rehydration", "steady_state"): Drawn("every range\nis committed", 50),
}
OPEN, CLOSED, BY_MEMORY = "open", "closed", "closed by memory"
GATE_PLACES: dict[str, Point] = {OPEN: (150, 130), CLOSED: (690, 50), BY_MEMORY: (690, 210)}
GATE_ARROWS: Drawing = {
    (OPEN, OPEN): Drawn("no signal at 1.0", 45),
    (OPEN, CLOSED): Drawn("any signal at 1.0 or above", 18),
    (CLOSED, OPEN): Drawn("all below 1.0", 18),
    (CLOSED, CLOSED): Drawn("", 0),
    (OPEN, BY_MEMORY): Drawn("executors at the high mark", 18),
    (BY_MEMORY, OPEN): Drawn("below the low mark, no other at 1.0", 18),
    (CLOSED, BY_MEMORY): Drawn("executors at\nthe high mark", 68),
    (BY_MEMORY, CLOSED): Drawn("below the low mark,\nanother at 1.0", 68),
    (BY_MEMORY, BY_MEMORY): Drawn("", 0),
}


def state_machine(legal: Mapping[State, frozenset[State]]) -> set[tuple[str, str]]:
    """Return the arrows of a table of legal transitions, with its beginning and its ends."""
    states = list(type(next(iter(legal))))
    arrows = {(state.value, to.value) for state, followers in legal.items() for to in followers}
    return arrows | {(START, states[0].value)} | {(state.value, END) for state in states if not legal[state]}


def gate() -> dict[tuple[str, bool, str], str]:
    """Return where the gate goes from each state, by asking it: another signal closes or not, memory is how full."""
    budget = Budget()
    low, high = (int(LIMIT * share) for share in (budget.executor_memory_low, budget.executor_memory))
    fills = {"below the low mark": low - 1, "between": high - 1, "at the high mark": high}
    return {
        (before, paused, fill): _after(budget, before=before, paused=paused, used=used)
        for before, paused, (fill, used) in product((OPEN, CLOSED, BY_MEMORY), (False, True), fills.items())
    }


def _after(budget: Budget, *, before: str, paused: bool, used: int) -> str:
    state = GateState(
        phase=phases.Phase.HYDRATION,
        credits=1,
        in_flight=0,
        waiting=1,
        reserved_bytes=0,
        oldest_seconds=None,
        commit_seconds=None,
        range_memory_bytes=None,
        paused_by="somebody" if paused else None,
        paused_why=None,
        memory_closed=before == BY_MEMORY,
    )
    reading = MemoryReading(used_bytes=used, limit_bytes=LIMIT, age_seconds=0)
    decision = gate_decision(state, reading, budget)
    return OPEN if decision.open else BY_MEMORY if memory_closed(to_json(decision)) else CLOSED


def _drawn(
    title: str, size: tuple[int, int], arrows: set[tuple[str, str]], places: dict[str, Point], how: Drawing
) -> Diagram:
    """Draw arrows; ValueError where one is not known how to be drawn, or is to be drawn but not there."""
    if arrows != set(how):
        raise ValueError(f"{title}: without a drawing {arrows - set(how)}, drawn but not there {set(how) - arrows}.")
    boxes = tuple(
        Box(name=name, at=at, kind="dot" if name in (START, END) else "", width=160 if " " in name else 120)
        for name, at in places.items()
    )
    shown = {ends: each for ends, each in how.items() if ends[0] != ends[1] or each.words}
    return Diagram(
        title=title,
        size=size,
        boxes=boxes,
        arrows=tuple(
            Arrow(start=start, end=end, words=each.words, bend=each.bend, word_at=each.word_at)
            for (start, end), each in shown.items()
        ),
    )


def _architecture() -> Diagram:
    return Diagram(
        title="What runs where, and what goes between",
        size=(920, 380),
        rooms=(Room(name="Airflow", corner=(20, 20), size=(560, 100)),),
        boxes=(
            Box(name="plan", at=(110, 75)),
            Box(name="lanes", at=(310, 75)),
            Box(name="verify", at=(500, 75)),
            Box(name="ledger", at=(110, 220), kind="store"),
            Box(name="Spark executors", at=(480, 330), width=150),
            Box(name="source", at=(110, 330), kind="store"),
            Box(name="target", at=(810, 330), kind="store"),
        ),
        arrows=(
            Arrow(start="plan", end="lanes"),
            Arrow(start="lanes", end="verify"),
            Arrow(start="plan", end="ledger", words="ranges"),
            Arrow(start="lanes", end="ledger", words="credit, commit", both=True),
            Arrow(start="lanes", end="Spark executors", words="one job per range"),
            Arrow(start="source", end="Spark executors", words="rows"),
            Arrow(start="Spark executors", end="target", words="rows + marker"),
            Arrow(start="lanes", end="target", words="markers", both=True, dotted=True, word_at=0.6),
        ),
    )


def _push() -> Diagram:
    return Diagram(
        title="How those that wait hear of a change",
        size=(920, 250),
        boxes=(
            Box(name="lane", at=(90, 60)),
            Box(name="ledger", at=(90, 200), kind="store"),
            Box(name="channel", at=(380, 60)),
            Box(name="queue of a process", at=(760, 60), width=160),
            Box(name="those that wait there", at=(760, 200), width=180),
        ),
        arrows=(
            Arrow(start="lane", end="ledger", words="commit"),
            Arrow(start="lane", end="channel", words="numbered diff,\nafter the commit"),
            Arrow(start="channel", end="queue of a process"),
            Arrow(start="queue of a process", end="those that wait there", words="one turn at a time"),
            Arrow(start="those that wait there", end="ledger", words="look, take the credit"),
        ),
    )


def diagrams() -> dict[str, Diagram]:
    """Return every diagram by its name under docs/images."""
    gate_arrows = {(before, after) for (before, _, _), after in gate().items()}
    return {
        "states-range": _drawn(
            "States of a range", (920, 460), state_machine(range_transitions.LEGAL), RANGE_PLACES, RANGE_ARROWS
        ),
        "states-hydration": _drawn(
            "Phases of a hydration", (800, 220), state_machine(hydration_transitions.LEGAL), PHASE_PLACES, PHASE_ARROWS
        ),
        "states-gate": _drawn("States of the gate", (860, 260), gate_arrows, GATE_PLACES, GATE_ARROWS),
        "architecture": _architecture(),
        "push": _push(),
    }
