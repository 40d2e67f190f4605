"""What readers of a table see at one moment: its files by the slices that brought them, and a name for them all."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from airflow_provider_backpressure.connectors.lake.markers import Mark


@dataclass(frozen=True, kw_only=True)
class Landed:
    """Files that readers of a table see, which hold what one slice has brought, or rows of an unknown one."""

    files: tuple[str, ...]
    rows: int
    bytes: int
    checksum: str = ""
    """Of all their rows; empty where no mark says it."""


@dataclass(frozen=True, kw_only=True)
class ContentVersion:
    """Identifies the rows that readers see. Files never change, so equal files hold equal rows."""

    table: str
    """The table's own id; empty where the format has none."""
    number: int
    """Delta's version, or the id of Iceberg's snapshot; 0 where there is none."""
    files: str
    """Digest of the files that hold rows."""

    @classmethod
    def from_files(cls, files: Mapping[str, tuple[int, ...]], *, table: str = "", number: int = 0) -> "ContentVersion":
        """Return the version of these files, by name and the facts that distinguish a later file of that name."""
        text = json.dumps(sorted([name, *facts] for name, facts in files.items()))
        return cls(table=table, number=number, files=hashlib.sha256(text.encode()).hexdigest()[:32])

    def has_same_files(self, other: "ContentVersion") -> bool:
        """Whether both are of the same files of the same table."""
        return (self.table, self.files) == (other.table, other.files)

    def to_json(self) -> str:
        """Return it as JSON, which plans keep."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "ContentVersion":
        """Read what :meth:`to_json` wrote."""
        return cls(**json.loads(text))


@dataclass(frozen=True, kw_only=True)
class Content:
    """Every file with rows, and the version of all of them together."""

    files: tuple[Landed, ...]
    version: ContentVersion

    @property
    def rows(self) -> int:
        """How many rows readers see."""
        return sum(each.rows for each in self.files)

    @property
    def bytes(self) -> int:
        """Size of the files."""
        return sum(each.bytes for each in self.files)

    @classmethod
    def from_files(
        cls,
        marks: Iterable[Mark],
        visible: Mapping[str, tuple[int, int]],
        *,
        table: str = "",
        number: int = 0,
        ages: Mapping[str, int] | None = None,
    ) -> "Content":
        """Return files by their slices, as far as a slice's rows still lie in its own; every other file by itself.

        ``visible``: size and rows of each file that readers see. ``ages``: when each was written, where a file may take
        the place of another one of its name.
        """
        left = {name: each for name, each in visible.items() if each[1]}
        version = ContentVersion.from_files(
            {name: (*each, ages[name]) if ages else each for name, each in left.items()}, table=table, number=number
        )
        found = []
        for mark in marks:
            if mark.rows and all(name in left for name in mark.files):
                sizes = [left.pop(name) for name in mark.files]
                size, rows = sum(size for size, _ in sizes), sum(rows for _, rows in sizes)
                found.append(Landed(files=mark.files, rows=rows, bytes=size, checksum=mark.checksum))
        found += [Landed(files=(name,), rows=rows, bytes=size) for name, (size, rows) in sorted(left.items())]
        return cls(files=tuple(found), version=version)
