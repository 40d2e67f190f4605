"""What a verification has found."""

from dataclasses import dataclass


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

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not self.mismatches
