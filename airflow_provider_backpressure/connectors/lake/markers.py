"""What a lake keeps of plans and slices: the plan row with its fence, and a mark for each committed slice."""

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from airflow_provider_backpressure.core.json_codec import from_dict
from airflow_provider_backpressure.core.ports.sink import Marker, PlanRow
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import attempt_tag
from airflow_provider_backpressure.core.snapshot.spark_messages import RangeSpec, Slice
from airflow_provider_backpressure.core.snapshot.topic_offsets import Move, moves
from airflow_provider_backpressure.exceptions import RESTART, PlanSuperseded, SinkRefused

FOLDER = "_backpressure"
"""Folder of a table that is ours; readers pass over names that begin with an underscore."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The plan that holds a table, as the table itself knows it."""

    plan_id: str
    epoch: int
    about: Mapping[str, Any] = field(default_factory=dict)
    """Source, consistency, mode, frontier and fingerprint of the plan, for a person; and the whole of it, for a lost
    ledger. ``table``: the table's own id, where the format has one; notes of earlier releases lack it."""

    @classmethod
    def create(cls, plan: Plan, epoch: int, **table: str | int) -> "Holder":
        """Return the row of a plan under a newly minted epoch; ``table``: what the format has to say of its own."""
        about = {
            "source_identity": plan.source_identity,
            "consistency": plan.consistency.value,
            "mode": plan.mode.value,
            "frontier": dict(plan.frontier),
            "fingerprint": plan.fingerprint,
            "planned_at": datetime.now(UTC).isoformat(),
            "plan": plan.to_json(),
            **table,
        }
        return cls(plan_id=plan.plan_id, epoch=epoch, about=about)

    def row(self, *, committed: int) -> PlanRow:
        """Return it as the sink's port has it."""
        whole = self.about.get("plan")
        return PlanRow(
            plan_id=self.plan_id,
            epoch=self.epoch,
            source_identity=self.about.get("source_identity", ""),
            plan=Plan.from_json(whole) if whole else None,
            committed=committed,
        )

    @staticmethod
    def check_turn(holder: "Holder | None", plan: Plan) -> bool:
        """Return whether the plan holds the table already, as :meth:`Plan.check_turn`."""
        return plan.check_turn(holder.plan_id if holder is not None else None)

    def check_plan(self, plan_id: str, name: str) -> None:
        """Raise ``PlanSuperseded`` unless this plan holds the table, under whatever epoch."""
        if self.plan_id != plan_id:
            raise PlanSuperseded(f"Plan {plan_id} no longer holds {name}: plan {self.plan_id} does.")

    def check_table(self, identity: str, name: str) -> None:
        """Raise ``SinkRefused`` where the plan began in another table of this name."""
        if self.about.get("table", identity) != identity:
            raise SinkRefused(format_missing_table(name))

    def with_epoch(self, epoch: int) -> "Holder":
        """Return the row of the same plan under a newer epoch."""
        return replace(self, epoch=epoch)

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Holder":
        """Read what :meth:`to_json` wrote."""
        return cls(**json.loads(text))


def format_other_sink(name: str, sink: str) -> str:
    """Return the sentence about a table that a hydration with another kind of sink holds: neither sees the other's."""
    return (
        f"{name} is held by a plan of {sink}: two hydrations would overwrite each other's rows. Remove that hydration "
        "by `airflow backpressure uninstall`, or name another table."
    )


def format_missing_table(name: str) -> str:
    """Return the sentence about a table that is gone, or is another one by now."""
    return f"{name} is not the table that earlier plans wrote: it was dropped or created again; {RESTART}."


def mint_nonce() -> int:
    """Return a number that no other execution has."""
    return secrets.randbelow(2**52) + 1


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One execution of one attempt at one slice. Two executions of an attempt differ by their nonce."""

    plan_id: str
    epoch: int
    slice_id: str
    attempt: int
    bounds: Mapping[str, Any]
    moves: tuple[Move, ...] = ()
    """What a range of a log moves where its order is kept."""
    nonce: int = field(default_factory=mint_nonce)

    @classmethod
    def create(cls, spec: RangeSpec, piece: Slice) -> "Attempt":
        """Return a new execution of what a message asks for."""
        return cls(
            plan_id=spec.plan_id,
            epoch=spec.epoch,
            slice_id=piece.slice_id,
            attempt=spec.attempt,
            bounds=dict(piece.bounds),
            moves=moves(piece.bounds, spec.read.window) if spec.write.ordered else (),
        )

    @property
    def tag(self) -> str:
        """The attempt's name everywhere."""
        return attempt_tag(self.plan_id, self.slice_id, self.attempt)

    @property
    def stem(self) -> str:
        """Beginning of the names of this execution's files."""
        return f"{self.plan_id}-{self.slice_id}-{self.nonce:013x}"

    def check(self, holder: Holder | None, name: str) -> None:
        """Raise ``PlanSuperseded`` unless the attempt's plan holds the table under its epoch."""
        if holder is None:
            raise PlanSuperseded(f"{name} has no plan: it never begun, or was removed.")
        if (holder.plan_id, holder.epoch) != (self.plan_id, self.epoch):
            raise PlanSuperseded(
                f"Plan {self.plan_id} (epoch {self.epoch}) no longer holds {name}: "
                f"plan {holder.plan_id} (epoch {holder.epoch}) does."
            )


@dataclass(frozen=True, kw_only=True)
class Mark:
    """What a committed slice is, and the files that it came in."""

    plan_id: str
    slice_id: str
    epoch: int
    attempt: int
    nonce: int
    bounds: Mapping[str, Any]
    rows: int
    bytes: int
    checksum: str
    committed_at: str
    """ISO 8601, UTC, by the clock of the task."""
    files: tuple[str, ...] = ()
    """Data files as they were written, under the table's folder."""
    quarantined: int = 0
    """Rows of the slice that are kept in the table beside this one."""
    read_at: str = ""
    """The position of the source's log after the rows were read; empty where that was not asked."""
    deleted: int = 0
    """Rows of the table that the slice has deleted under ``mirror``."""
    again: int = 0
    """How often a mark of the slice had been discarded before, so that its range was written again."""

    @classmethod
    def made(
        cls,
        attempt: Attempt,
        *,
        rows: int,
        bytes: int,
        checksum: str,
        files: tuple[str, ...],
        quarantined: int = 0,
        read_at: str = "",
    ) -> "Mark":
        """Return the mark of what an execution has written."""
        return cls(
            plan_id=attempt.plan_id,
            slice_id=attempt.slice_id,
            epoch=attempt.epoch,
            attempt=attempt.attempt,
            nonce=attempt.nonce,
            bounds=attempt.bounds,
            rows=rows,
            bytes=bytes,
            checksum=checksum,
            committed_at=datetime.now(UTC).isoformat(),
            files=files,
            quarantined=quarantined,
            read_at=read_at,
        )

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Mark":
        """Read what :meth:`to_json` wrote."""
        return from_dict(cls, json.loads(text))

    def marker(self) -> Marker:
        """Return it as the sink's port has it."""
        return Marker(
            plan_id=self.plan_id,
            slice_id=self.slice_id,
            epoch=self.epoch,
            attempt=self.attempt,
            bounds=self.bounds,
            rows=self.rows,
            bytes=self.bytes,
            checksum=self.checksum,
            committed_at=datetime.fromisoformat(self.committed_at),
            quarantined=self.quarantined,
            read_at=self.read_at,
        )


def make_revoked_marker(about: Mapping[str, Any]) -> Marker:
    """Return the marker of a slice that no attempt may commit any more."""
    return Marker(
        plan_id=about["plan_id"],
        slice_id=about["slice_id"],
        epoch=about["epoch"],
        attempt=0,
        bounds=about["bounds"],
        rows=0,
        bytes=0,
        checksum="",
        committed_at=datetime.fromtimestamp(0, UTC),
        revoked=True,
    )
