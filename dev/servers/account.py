"""PostgreSQL refuses to run as root: which account runs it then, and which folders that account can reach."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dev.servers.server import ServiceError

NOBODY = "nobody"


def unprivileged() -> str | None:
    """Return the account to run as, or None where the caller's own will do."""
    return NOBODY if os.geteuid() == 0 else None


def open_to_all(folder: Path) -> bool:
    """Whether any account can pass through all of the parents of a folder."""
    return all(parent.stat().st_mode & 0o001 for parent in folder.parents if parent.exists())


def reachable(folder: Path, home: Path, user: str | None) -> Path:
    """Return the folder, or where the account cannot reach that, one for this home in the system's temporary folder."""
    if user is None or open_to_all(folder / "data"):
        return folder
    return outside(home) / folder.name if folder.is_relative_to(home) else shared() / folder.name


def outside(home: Path) -> Path:
    """Return the folder that holds what of a home cannot stay in there."""
    return shared() / hashlib.sha256(str(home).encode()).hexdigest()[:16]


def remove_outside(home: Path) -> None:
    """Remove what of a home lies outside."""
    for base in _bases():
        shutil.rmtree(base / outside_name() / hashlib.sha256(str(home).encode()).hexdigest()[:16], ignore_errors=True)


def outside_name() -> str:
    """Return the name of our folder in the temporary one."""
    return f"backpressure-services-{os.geteuid()}"


def shared() -> Path:
    """Return our own folder in the first temporary one that every account can reach."""
    for base in _bases():
        if open_to_all(base / "x"):
            folder = base / outside_name()
            folder.mkdir(mode=0o755, exist_ok=True)
            if folder.lstat().st_uid != os.geteuid() or folder.is_symlink():
                raise ServiceError(f"{folder} belongs to someone else: remove it.")
            folder.chmod(0o755)
            return folder
    raise ServiceError("PostgreSQL must run as nobody, who can reach no temporary folder: name one in TMPDIR.")


def _bases() -> Iterator[Path]:
    yield from (Path("/var/tmp"), Path(tempfile.gettempdir()))


def make_way(folder: Path, user: str | None) -> None:
    """Make a folder that the account can reach, whatever the umask."""
    folder.mkdir(parents=True, exist_ok=True)
    if user:
        for ours in (folder, folder.parent):
            ours.chmod(ours.stat().st_mode | 0o055)


def give(folder: Path, user: str | None) -> None:
    """Make a folder, for this account alone."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if user:
        shutil.chown(folder, user)
