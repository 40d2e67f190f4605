"""What a source holds at a frontier, and the plan made from it."""

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from airflow_provider_backpressure.core.config import Consistency, Mode
from airflow_provider_backpressure.core.json_codec import from_dict, to_json
from airflow_provider_backpressure.core.snapshot.replay_window import ReplayWindow
from airflow_provider_backpressure.core.snapshot.spark_messages import (
    REPLAY,
    Column,
    ReadSpec,
    StreamTable,
    Transform,
    Window,
    WriteSpec,
)
from airflow_provider_backpressure.core.snapshot.topic_offsets import Key
from airflow_provider_backpressure.exceptions import RESTART, InvalidDeclaration, PlanSuperseded, SourceRefused

LANDED = "landed"
"""Kind of a source whose rows a hydration has landed in a table of files before."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A source's answer to "what is there?", before anything is read."""

    source_identity: str
    """Names the source across runs and connections, without secrets: ``postgres://host:port/db/schema.table``."""
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    """Columns of the source's unique key; empty where it has none."""
    split: tuple[str, ...]
    """Columns by which ranges are cut; empty where they are cut by blocks."""
    unique: bool
    """Whether no two rows share their values, and none is without."""
    frontier: Mapping[Key, int]
    """Rows per table, offsets per partition …: what must be committed for the snapshot to be complete."""
    total: int | None
    """Rows or offsets in all; ``None`` where unknown, never 0 for unknown."""
    total_exact: bool
    row_bytes: float
    """Mean size of a row by the source's statistics, in bytes."""
    consistency: Consistency
    widest_bytes: float = 0.0
    """Size of the largest row that may have to be expected, where rows differ much in size; 0: they do not."""
    window: Window | None = None
    """What of a rising column this snapshot is about; ``None`` where there is none."""
    log_keys: tuple[tuple[str, ...], ...] = ()
    """Under ``catch_up``: unique keys by which the source's log identifies a deleted row."""
    defaults: tuple[str, ...] = ()
    """Columns with a default: once they are added, rows have a value that nobody wrote."""
    loose: tuple[str, ...] = ()
    """Columns of text of which the source takes different ones for equal."""
    coarse: tuple[str, ...] = ()
    """Columns of dates, and of times with so few digits that many rows have one value."""
    position: str | None = None
    """The position of the source's log before anything was read (LSN or GTID set); ``None`` where none is kept."""
    versions: tuple[str, ...] = ()
    """Columns that distinguish several rows of one key, which come in no order; empty where each key comes once."""
    version: str = ""
    """Identifies the rows that the source holds, where it has versions of its content; empty where it has none."""
    filtered: bool = False
    """Whether a condition leaves rows of the table out."""
    hides_rows: bool = False
    """Whether the source shows the login only some of the table's rows, by policies of its own."""
    rekeyed: str = ""
    """Why rows that go by their records' own key have other keys than in the plan before, as a sentence."""
    side_by_side: bool = False
    """Whether partitions of a log have no key in common, so that their records may be upserted side by side."""


def fingerprint(columns: tuple[Column, ...]) -> str:
    """Return the digest of a schema: a plan is only good for the columns it was made for."""
    text = json.dumps([[column.name, column.type] for column in columns])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One plan: identity, fence and what every range of it shares.

    Kept whole in the ledger and in the sink's plan row, from which a lost ledger is rebuilt.
    """

    plan_id: str
    """32 hex digits, a UUID per plan."""
    epoch: int
    """Minted in the sink; a newer plan of the same target has a higher one. 0: the sink does not know the plan yet."""
    source_identity: str
    sink_identity: str
    consistency: Consistency
    mode: Mode
    frontier: Mapping[Key, int]
    fingerprint: str
    total: int | None
    total_exact: bool
    path: str
    """``copy``, ``frame`` or ``replay``."""
    read: ReadSpec
    write: WriteSpec
    transform: Transform | None = None
    clears: str | None = None
    """Id of the plan before, which was closed unfinished: what it wrote is removed when this one takes the target."""
    position: str | None = None
    """The position of the source's log before anything was read, so that what came later can be replayed.

    Under ``catch_up`` a ``LogPosition``, the same in all plans of windows that follow."""
    environment: str = ""
    """The environment whose hydration it is, by which the target's plan row distinguishes it from another one's."""
    ranges: int | None = None
    """How many ranges it has; ``None`` before they are counted."""
    counted: bool = False
    """Whether ``total`` was counted in the very snapshot in which the ranges are read."""
    hydration_id: str = ""
    """Under ``catch_up`` the ledger's id of the hydration, after which the source's log keeps a place for it."""
    stream: str = ""
    """Under ``catch_up`` the ledger's id of the hydration that replays the log for this table and others; empty: the
    table has a log of its own."""
    tables: tuple[StreamTable, ...] = ()
    """Of a stream's windows the tables that they are replayed into; empty for every other plan."""
    version: str = ""
    """The snapshot's; empty also in plans of earlier releases."""
    held_by: str | None = None
    """Plan that held the target when this one was made; empty: none did. ``None`` in plans of earlier releases."""
    held_epoch: int = 0
    """The epoch of that plan."""
    restarted_by: str = ""
    """Run that asked for a new plan last; plans that follow keep it. Empty also in plans of earlier releases."""
    versions: tuple[str, ...] = ()
    """The snapshot's; in the plan row of a lake also those of the rows that were there before."""
    mirrored_since: int = 0
    """Under ``mirror`` the epoch of the first of the plans that have followed each other with the same bounds or parts
    of them, so that a write since then proves what the target holds. 0: every range is staged."""
    files: str = ""
    """The files that held the target's rows: under ``mirror`` when the plan was made, and where a later snapshot may
    follow when the first was opened."""

    rewrite_key: tuple[str, ...] = ()
    """Under ``snapshot`` the key by which a later snapshot corrects ranges that were committed in an earlier one;
    empty: a lost snapshot closes the plan."""
    snapshot_epoch: int = 0
    """Where a later snapshot may follow: the epoch under which the latest one was opened. A range whose marker has an
    older one was read in an earlier snapshot. 0: none was opened yet."""

    builds_on: str = ""
    """The plan before, which it follows without a gap, and which no other may follow; empty: it needs none."""
    is_rebuilt: bool = False
    """Whether the ledger has it from the sink: what is open in it may have been committed, or confirmed, before."""
    allowed_by: str = ""
    """Under ``mirror`` the run that may delete any number of rows; empty: the limit holds for every run."""

    read_again_epoch: int = 0
    """Under ``snapshot`` the epoch under which every range was read twice in the one snapshot, and was the same: the
    source as ``verify="full"`` compares it. 0: it was not, or not yet."""

    @property
    def is_read_again(self) -> bool:
        """Whether the source was compared with what was committed, while the snapshot of all ranges was kept."""
        return bool(self.epoch) and self.read_again_epoch == self.epoch

    @property
    def survives(self) -> bool:
        """Whether it continues in another snapshot where the one that its ranges are read in is lost."""
        return bool(self.rewrite_key)

    def is_outdated(self, plan_id: str, epoch: int) -> bool:
        """Whether a marker of this plan and epoch is of an earlier snapshot than the one that ranges are read in."""
        return self.survives and plan_id == self.plan_id and epoch < self.snapshot_epoch

    @property
    def unit(self) -> str:
        """What its total and its progress count."""
        replayed = ReplayWindow.from_window(self.read.window)
        if replayed is not None:
            return replayed.unit
        return "offsets" if self.consistency is Consistency.OFFSETS else "rows"

    def takes_over(self, other: "Plan | None") -> bool:
        """Whether this is the same plan, and its epoch not older: of two lives that continue it the later counts."""
        return other is not None and other.plan_id == self.plan_id and other.epoch <= self.epoch

    def move_to(self, read: ReadSpec) -> "Plan":
        """Return the plan with the place of its source's table, and how it is stored, as they are now."""
        return replace(self, read=replace(self.read, place=read.place, storage=read.storage))

    def check_turn(self, holder: str | None) -> bool:
        """Return whether the plan holds the target already, so that nothing is prepared for it again.

        ``PlanSuperseded`` where another plan has taken the target since this one was made.
        """
        if holder is not None and self.held_by is not None and holder not in (self.held_by, self.plan_id):
            raise PlanSuperseded(
                f"Plan {self.plan_id} cannot take {self.write.fence}: plan {holder} has taken it since. Run the task "
                "plan_snapshot again: it compares the ledger with the target."
            )
        return holder == self.plan_id

    @property
    def replays(self) -> bool:
        """Whether it replays a piece of the source's log, see :mod:`..core.snapshot.replay_window`."""
        return self.path == REPLAY

    @property
    def follows(self) -> bool:
        """Whether later runs bring what comes to the source."""
        return self.read.window is not None or self.consistency is Consistency.CATCH_UP

    @property
    def landed(self) -> bool:
        """Whether its rows come from files that a hydration has landed before."""
        return self.read.kind == LANDED

    @property
    def increment(self) -> bool:
        """Whether it brings only rows that are newer than an earlier plan."""
        return self.read.window is not None and self.read.window.after is not None

    def to_json(self) -> str:
        """Return the plan as JSON; it holds connection names, no secrets."""
        return to_json(self)

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Read what :meth:`to_json` wrote."""
        return from_dict(cls, json.loads(text))


log = logging.getLogger(__name__)


def check_increment(plan: Plan, column: str | None) -> None:
    """Raise where the value committed last is one of another column than later runs are to be read by."""
    window = plan.read.window
    if window is None or column is None or window.column == column:
        return
    raise InvalidDeclaration(
        f"{plan.source_identity} was read by increment_column={window.column!r}, not {column!r}: the value committed "
        f"last, {shorten(window.upto)}, says nothing of {column}. Name {window.column} again, or {RESTART}."
    )


def check_order(plan: Plan, snapshot: Snapshot) -> None:
    """Raise where text of the rising column is in another order than when its last value was committed."""
    window = plan.read.window
    if window is None:
        return
    before, now = (
        next((each.collation for each in columns if each.name == window.column), None)
        for columns in (plan.read.columns, snapshot.columns)
    )
    if None not in (before, now) and before != now:
        raise SourceRefused(
            f"Text of {window.column} in {plan.source_identity} is ordered by {now}, and was by {before} when its last "
            f"value was committed: what lies above that value has changed. What is committed stays; {RESTART}."
        )


def warn_coarse(snapshot: Snapshot) -> None:
    """Log a warning where many rows have one value of the rising column: the next run reads only what lies above."""
    window = snapshot.window
    if window is not None and window.column in snapshot.coarse:
        log.warning(
            "Increments of %s are read by %s, in which many rows have one value: a row that arrives later with the "
            "highest value of this plan, %s, is never read, so name a column of finer values if there is one.",
            snapshot.source_identity,
            window.column,
            window.upto,
        )


def shorten(text: str, width: int = 120) -> str:
    """Return the text for a sentence: a log's frontier has a number for each partition."""
    return text if len(text) <= width else f"{text[:width]}…"
