"""What a table's own log keeps of plans and slices, where Spark writes it: a note in each of our commits."""

import json
import secrets
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from airflow_provider_backpressure.connectors.lake.markers import Attempt, Holder, Mark
from airflow_provider_backpressure.core.json_codec import from_dict
from airflow_provider_backpressure.core.snapshot.bounds import (
    LOG,
    Bounds,
    LogBounds,
    LogPosition,
    OffsetBounds,
    bounds_from_json,
)
from airflow_provider_backpressure.core.snapshot.topic_offsets import LogWindow

KEY = "backpressure"
"""Name of a note in the commit that carries it, and beginning of our table properties."""
PLAN, MARKS = f"{KEY}.plan", f"{KEY}.marks."
"""Properties with what outlives the log's own retention: the plan that holds the table, and the marks by plan."""
HEAD = f"{KEY}.head"
"""Property with the version at which the last plan that ended has left the table, where a rollback keeps properties."""
COMPACTED = f"{KEY}.compacted"
"""Property with the time of the last window whose files were compacted, as its mark has it."""
CHAIN = f"{KEY}.chain"
"""Property with the last change of others, and the version up to which it is the last: see ``find_last_change``."""

MAINTAIN_EVERY = "maintain_every"
"""What a plan's note says of the maintenance: as the DAG declares it when that plan is made."""


class Kind(StrEnum):
    """What our commit is."""

    MARK = "mark"
    """The rows of a slice."""
    FENCE = "fence"
    """No rows: it takes the token of a slice, so that no attempt with that token can commit any more."""
    PLAN = "plan"
    """No rows: a plan takes the table under a new epoch."""
    SETTLED = "settled"
    """No rows: every attempt of an earlier epoch is fenced, and what had to be removed is removed."""
    DISCARD = "discard"
    """No rows: a slice's mark, and those of earlier plans over its bounds, prove nothing any more."""
    CONFIRMED = "confirmed"
    """No rows: the ranges of a plan that did not change since the plan before are in the table."""


@dataclass(frozen=True, kw_only=True)
class Note:
    """One of our commits. The table accepts one commit for each token."""

    kind: Kind
    token: str
    about: Mapping[str, Any]
    nonce: int = field(default_factory=lambda: secrets.randbelow(2**52) + 1)
    """Distinguishes two executions that ask for the same token."""

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps({KEY: asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> "Note | None":
        """Read what :meth:`to_json` wrote; ``None`` for another writer's text."""
        try:
            value = json.loads(text)[KEY]
        except (ValueError, KeyError, TypeError):
            return None
        return cls(**{**value, "kind": Kind(value["kind"])})


def make_token(plan_id: str, slice_id: str, epoch: int, again: int = 0) -> str:
    """Return what every attempt at a slice under one epoch commits by. ``again``: as :class:`Mark` has it."""
    return f"{KEY}:{plan_id}:{slice_id}:{epoch}{f'.{again}' if again else ''}"


def note_of_mark(mark: Mark) -> Note:
    """Return the note of a slice's rows."""
    token = make_token(mark.plan_id, mark.slice_id, mark.epoch, mark.again)
    return Note(kind=Kind.MARK, token=token, about=asdict(mark), nonce=mark.nonce)


def note_of_fence(
    plan_id: str, slice_id: str, epoch: int, bounds: Mapping[str, Any] | None = None, again: int = 0
) -> Note:
    """Return the note that takes a slice's token. ``bounds``: of a slice that is revoked for good."""
    about = {"plan_id": plan_id, "slice_id": slice_id, "epoch": epoch, "bounds": bounds}
    return Note(kind=Kind.FENCE, token=make_token(plan_id, slice_id, epoch, again), about=about)


def note_of_discard(plan_id: str, slice_id: str, epoch: int, bounds: Mapping[str, Any], again: int) -> Note:
    """Return the note that lets a slice be written again, for the ``again``-th time."""
    about = {"plan_id": plan_id, "slice_id": slice_id, "epoch": epoch, "bounds": bounds, "again": again}
    return Note(kind=Kind.DISCARD, token=f"{KEY}:discard:{plan_id}:{slice_id}:{again}", about=about)


def note_of_confirmation(plan_id: str, epoch: int, rows: int) -> Note:
    """Return the note that confirms the ranges of a plan that did not change. ``rows``: how many they hold."""
    about = {"plan_id": plan_id, "epoch": epoch, "rows": rows}
    return Note(kind=Kind.CONFIRMED, token=f"{KEY}:confirmed:{plan_id}:{epoch}", about=about)


def note_of_clearing(plan_id: str) -> Note:
    """Return the note that a plan deletes the rows of the plan before it by, and lets nobody delete any more."""
    return note_of_fence(plan_id, "clear", 0)


def note_of_plan(holder: Holder, *, settled: bool) -> Note:
    """Return the note of a plan's epoch. ``settled``: whether there is no attempt of before that could still commit."""
    about = {**asdict(holder), "settled": settled}
    return Note(kind=Kind.PLAN, token=_token_of_plan(holder.epoch), about=about)


def _token_of_plan(epoch: int) -> str:
    return f"{KEY}:plan:{epoch}"


def note_of_settling(holder: Holder) -> Note:
    """Return the note that says that a plan's epoch has been settled."""
    about = {"plan_id": holder.plan_id, "epoch": holder.epoch}
    return Note(kind=Kind.SETTLED, token=f"{KEY}:settled:{holder.epoch}", about=about)


def pack(value: Any) -> str:
    """Return a value as the text of a table property: hexadecimal digits, so that SQL quotes it as it is.

    In base64 Spark would show some values as redacted: those that spell "url" by chance (seen on 4.1.3).
    """
    return zlib.compress(json.dumps(value).encode(), 9).hex()


def unpack(text: str) -> Any:
    """Read what :func:`pack` wrote."""
    return json.loads(zlib.decompress(bytes.fromhex(text)))


def name_window(start: LogPosition) -> str:
    """Return the slice id of a window of a log that tables share, in one of them: named by where it begins there.

    A table takes each token once, so of all windows that begin at its frontier one goes in, whichever plan they are of.
    """
    return f"{_WINDOW}{start.at:x}"


def is_shared_window(slice_id: str) -> bool:
    """Whether a slice is a window of a log that tables share, and none of the plan's own ranges."""
    return slice_id.startswith(_WINDOW)


_WINDOW = "w"


@dataclass(kw_only=True)
class LogState:
    """What the notes of a table say together with its properties."""

    holders: list[Holder] = field(default_factory=list)
    """Each epoch's, rising."""
    settled: int = 0
    """The latest epoch before which no attempt can commit."""
    marks: dict[tuple[str, str], Mark] = field(default_factory=dict)
    """By plan and slice."""
    fences: dict[str, Note] = field(default_factory=dict)
    """By token."""
    kept: set[str] = field(default_factory=set)
    """Plans of which a property has the marks: all of them."""
    present: Collection[str] = ()
    """Tokens of the commits that the table's present rows come from, as far back as the log goes."""
    lost: Collection[str] = ()
    """Those of them of which the log has no note any more."""
    cut_off: str = ""
    """The version at which the last plan that ended has left the table, where the present rows do not come from it."""
    head: str = ""
    """The version that it is read of, as :data:`HEAD` keeps it; empty where a rollback takes properties back too."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Our table properties, as they were read with the notes."""
    compacted: str = ""
    """When the last window was committed whose files were compacted since; empty where none were."""
    discards: list[Mapping[str, Any]] = field(default_factory=list)
    """What notes say of slices that are to be written again."""
    confirmed: dict[str, int] = field(default_factory=dict)
    """By plan, the latest epoch under which its ranges that did not change were confirmed."""

    @classmethod
    def read(
        cls,
        notes: Iterable[Note],
        properties: Mapping[str, str],
        *,
        present: Collection[str] | None = None,
        lost: Collection[str] = (),
        cut_off: str = "",
        head: str = "",
    ) -> "LogState":
        """Put notes, in the log's order, and properties together. ``present``: ``None`` for the tokens of the notes."""
        notes = list(notes)
        tokens = {note.token for note in notes} if present is None else present
        own = {name: text for name, text in properties.items() if name.startswith(f"{KEY}.")}
        compacted = own.get(COMPACTED, "")
        state = cls(present=tokens, lost=lost, cut_off=cut_off, head=head, properties=own, compacted=compacted)
        if PLAN in properties:
            state._add_holder(from_dict(Holder, unpack(properties[PLAN])), settled=True)
        for name, text in properties.items():
            if name.startswith(MARKS):
                state.kept.add(name.removeprefix(MARKS))
                state._add_marks(from_dict(Mark, each) for each in unpack(text))
        for note in notes:
            state._add(note)
        state._drop_discarded()
        state.holders.sort(key=lambda each: each.epoch)
        return state

    @property
    def holder(self) -> Holder | None:
        """The plan that holds the table."""
        return self.holders[-1] if self.holders else None

    @property
    def began(self) -> int:
        """The epoch under which the plan that holds the table has taken it first; 0 where none holds it."""
        own = [each for each in self.holders if self.holder is not None and each.plan_id == self.holder.plan_id]
        return min((int(each.about.get("began", each.epoch)) for each in own), default=0)

    @property
    def unsettled(self) -> list[Holder]:
        """Holders before the present one whose attempts may still commit; none once its own epoch is settled."""
        before = self.holders[:-1]
        if self.holder is None or self.settled >= self.holder.epoch:
            return []
        return [each for each in before if each.epoch >= self.settled]

    def has_ended(self, submitted: Sequence[str] | None) -> bool:
        """Whether no attempt of any epoch up to now can commit any more, since every slice of the holder is in.

        ``submitted``: those that were submitted and are not known to be in; ``None`` where nobody knows. Only of a plan
        whose ranges are all known: one that gets more of them later may have attempts that were not submitted yet.
        """
        holder = self.holder
        plan = holder.row(committed=0).plan if holder is not None else None
        if holder is None or plan is None or plan.ranges is None or submitted is None or self.settled < holder.epoch:
            return False
        slices = {*submitted, *(f"{seq}.0" for seq in range(plan.ranges))}
        return all(self.find(holder.plan_id, each) is not None for each in slices)

    def find(self, plan_id: str, slice_id: str) -> Mark | None:
        """Return the mark of a slice, of whatever epoch."""
        return self.marks.get((plan_id, slice_id))

    def marks_of(self, plan_id: str) -> dict[str, Mark]:
        """Return a plan's marks by slice id."""
        return {slice_id: mark for (plan, slice_id), mark in self.marks.items() if plan == plan_id}

    def count_discards(self, plan_id: str, slice_id: str) -> int:
        """Return how often a slice's mark was discarded."""
        own = [each for each in self.discards if (each["plan_id"], each["slice_id"]) == (plan_id, slice_id)]
        return max((int(each["again"]) for each in own), default=0)

    def list_writes(self, since: int = 0) -> list[Mark]:
        """Return of each bounds the latest mark, of those under this epoch or a later one."""
        found: dict[str, Mark] = {}
        for mark in sorted(self.marks.values(), key=lambda each: (each.epoch, each.again, each.committed_at)):
            if mark.epoch >= since:
                found[json.dumps(dict(mark.bounds), sort_keys=True)] = mark
        return list(found.values())

    def ranges_of(self, plan_id: str) -> dict[str, Mark]:
        """Return the marks of a plan's own slices: without windows of a log that its table shares with others."""
        return {key: mark for key, mark in self.marks_of(plan_id).items() if not is_shared_window(key)}

    def find_frontier(self, plan_id: str, start: LogPosition) -> LogPosition:
        """Return up to where a database's log is in the table, by a plan's marks; ``start`` where there is none.

        Behind a window that is missing nothing counts: the table was restored while a later one was on its way. Of the
        oldest windows the marks are forgotten in time.
        """
        marks = [mark.bounds for mark in self.marks_of(plan_id).values() if mark.bounds.get("kind") == LOG]
        bounds = [bounds_from_json(dict(each)) for each in marks]
        windows = sorted((each for each in bounds if isinstance(each, LogBounds)), key=lambda each: each.start.at)
        at = windows[0].end if windows else start
        for window in windows:
            if not at.has_reached(window.start):
                break
            at = max(at, window.end)
        return max(at, start)

    def find_positions(self, plan_id: str, window: LogWindow) -> dict[str, int]:
        """Return up to where a plan that reads this window has brought each partition of a topic, by its stream."""
        found = {window.stream(partition): start for partition, start in window.start.items()}
        for mark in self.marks_of(plan_id).values():
            bounds = bounds_from_json(dict(mark.bounds))
            for partition, _, end in bounds.pieces if isinstance(bounds, OffsetBounds) else ():
                found[window.stream(partition)] = max(end, found.get(window.stream(partition), 0))
        return found

    def list_uncompacted(self) -> list[str]:
        """Return when windows of changes, and ranges of upserted topics, were committed that were not compacted since.

        Those of all plans.
        """
        merged = [mark for mark in self.marks.values() if mark.bounds.get("kind") == LOG or mark.bounds.get("ordered")]
        windows = [mark.committed_at for mark in merged]
        return sorted(at for at in windows if at > self.compacted)

    def admits(self, note: Note) -> bool:
        """Whether a slice's rows, or the delete of a plan's beginning, may still go in on top of this state.

        The note's token alone does not say so for ever: the table may have forgotten those of earlier plans.
        """
        holder = self.holder
        if note.token in self.present or holder is None or holder.plan_id != note.about["plan_id"]:
            return False
        if note.kind is not Kind.MARK:
            return self.settled < holder.epoch
        slice_id = note.about["slice_id"]
        if is_shared_window(slice_id) and not self._continues(holder, bounds_from_json(dict(note.about["bounds"]))):
            return False
        fresh = note.about["again"] == self.count_discards(holder.plan_id, slice_id)
        return fresh and holder.epoch == note.about["epoch"] and self.find(holder.plan_id, slice_id) is None

    def _continues(self, holder: Holder, window: Bounds) -> bool:
        """Whether a window of a shared log begins where the log is in the table that the holder has."""
        plan = holder.row(committed=0).plan
        if plan is None or not isinstance(window, LogBounds):
            return True
        return self.find_frontier(plan.plan_id, LogPosition.parse(plan.position or "")).has_reached(window.start)

    def list_revoked(self, plan_id: str) -> dict[str, Mapping[str, Any]]:
        """Return the slices of a plan that are revoked for good, as their fences have them."""
        abouts = [note.about for note in self.fences.values()]
        return {each["slice_id"]: each for each in abouts if each["plan_id"] == plan_id and each["bounds"] is not None}

    def find_loss(self) -> str:
        """Return a commit that the plan that holds the table needs and the log has lost, by its token; empty for none.

        Once the plan's marks are kept in a property the present rows have to come from the version that it left, which
        is named then. Nothing is needed of other plans. Until then the log has to go back to where the plan took the
        table, and to where it cleared it, among the commits that the present rows come from: what is restored to a
        moment before that, or cut off behind it, may have any rows.
        """
        holder = self.holder
        if holder is None or not holder.plan_id:
            return ""
        if holder.plan_id in self.kept:
            return self.cut_off
        clearing = note_of_clearing(holder.plan_id).token
        needed = [_token_of_plan(self.began), *([clearing] if clearing in self.fences else [])]
        gone = [token for token in needed if token not in self.present]
        gone += [token for token in self.lost if self._needs(token, holder.plan_id)]
        return gone[0] if gone else ""

    def is_fenced(self, attempt: Attempt) -> bool:
        """Whether the attempt's token is taken by a fence."""
        again = self.count_discards(attempt.plan_id, attempt.slice_id)
        return make_token(attempt.plan_id, attempt.slice_id, attempt.epoch, again) in self.fences

    def _needs(self, token: str, plan_id: str) -> bool:
        """Whether a token is that of a slice of the plan of which nothing else is known."""
        parts = token.split(":")
        if len(parts) != len(("key", "plan", "slice", "epoch")):
            return False
        return parts[1] == plan_id and (plan_id, parts[2]) not in self.marks

    def _add(self, note: Note) -> None:
        if note.kind is Kind.MARK:
            self._add_marks([from_dict(Mark, dict(note.about))])
        elif note.kind is Kind.FENCE:
            self.fences[note.token] = note
        elif note.kind is Kind.SETTLED:
            self.settled = max(self.settled, int(note.about["epoch"]))
        elif note.kind is Kind.DISCARD:
            self.discards.append(note.about)
        elif note.kind is Kind.CONFIRMED:
            plan_id = note.about["plan_id"]
            self.confirmed[plan_id] = max(self.confirmed.get(plan_id, 0), int(note.about["epoch"]))
        else:
            about = dict(note.about)
            settled = bool(about.pop("settled"))
            self._add_holder(from_dict(Holder, about), settled=settled)

    def _add_marks(self, marks: Iterable[Mark]) -> None:
        for mark in marks:
            there = self.marks.setdefault((mark.plan_id, mark.slice_id), mark)
            if mark.again > there.again:
                self.marks[mark.plan_id, mark.slice_id] = mark

    def _drop_discarded(self) -> None:
        """Drop the marks that prove nothing any more, in whatever order notes and properties were read."""
        for about in self.discards:
            for key, mark in list(self.marks.items()):
                own = key == (about["plan_id"], about["slice_id"])
                older = mark.epoch < about["epoch"] and mark.bounds == about["bounds"]
                if (own and mark.again < about["again"]) or (not own and older):
                    del self.marks[key]

    def _add_holder(self, holder: Holder, *, settled: bool) -> None:
        if all(each.epoch != holder.epoch for each in self.holders):
            self.holders.append(holder)
        if settled:
            self.settled = max(self.settled, holder.epoch)


def pack_state(state: LogState, plan_id: str) -> dict[str, str]:
    """Return the properties that keep the plan that holds the table, and a plan's marks.

    Of windows of a shared log the last one says all: where the table's frontier is.
    """
    marks = [*state.ranges_of(plan_id).values()]
    windows = [mark for mark in state.marks_of(plan_id).values() if is_shared_window(mark.slice_id)]
    marks += sorted(windows, key=lambda mark: int(mark.slice_id.removeprefix(_WINDOW), 16))[-1:]
    kept = {f"{MARKS}{plan_id}": pack([asdict(mark) for mark in marks])}
    return kept if state.holder is None else {**kept, PLAN: pack(asdict(state.holder))}


def list_slices(holder: Holder, submitted: Sequence[str] | None) -> list[str]:
    """Return the slices of a plan that may have been submitted; ``submitted``: ``None`` where nobody knows."""
    if submitted is not None:
        return list(submitted)
    plan = holder.row(committed=0).plan
    return [f"{seq}.0" for seq in range((plan.ranges or 0) if plan is not None else 0)]
