"""What a verification has found: the ranges that differ, and the sentences and advice for them."""

from collections.abc import Sequence
from dataclasses import dataclass

NOT_READ_AGAIN = (
    "The source was not read again in the snapshot of plan {}, which is gone by now: declare verify='full' for the "
    "whole task group, so that the next plan is compared while its snapshot is kept, or use verify='target'."
)
NO_MARKER = "the target has no marker with its bounds"
SURPLUS_ADVICE = (
    "upsert leaves rows in the target that are no longer in the source: delete them, or empty the target and trigger "
    'the DAG with {"backpressure": "restart"}'
)
NAMED = 20
"""Most ranges that are named in the error; the log has them all."""


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """One range that differs, and how."""

    seq: int
    """The range, or -1 where only the target as a whole could be compared."""
    sentence: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """Outcome of a verification."""

    ranges: int
    rows: int
    """Rows that the target holds, over all ranges."""
    checksum: str
    """Sum of the ranges' checksums: that of the whole target."""
    mismatches: tuple[Mismatch, ...]
    compared: bool = True
    """Whether rows were read: otherwise the markers alone say that every range is in."""

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not self.mismatches


def mismatch_sentence(report: Report) -> str:
    """Return the sentence of a verification's error; it names the ranges, where any differs by itself."""
    numbers = [mismatch.seq for mismatch in report.mismatches if mismatch.seq >= 0]
    if not numbers:
        return f"The target differs: {report.mismatches[0].sentence}."
    return (
        f"{len(numbers)} of {report.ranges} ranges differ: {list_ranges(numbers)}; "
        f"the first: {report.mismatches[0].sentence}."
    )


def list_ranges(numbers: Sequence[int]) -> str:
    """Return the numbers of ranges as part of a sentence, and how many there are beyond those that it names."""
    more = f" and {len(numbers) - NAMED} more" if len(numbers) > NAMED else ""
    return ", ".join(map(str, numbers[:NAMED])) + more
