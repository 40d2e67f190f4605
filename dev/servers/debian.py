"""Debian packages, fetched and unpacked without root: apt checks their signatures."""

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dev.downloads import locked
from dev.servers import process
from dev.servers.server import ServiceError


def unpacked(cache: Path, name: str, packages: Sequence[tuple[str, ...]], *, mark: str, lacking: str) -> Path:
    """Return the folder with the files of packages, of each by the first name that is known.

    Raises ``ServiceError``, which says `lacking`.
    """
    found = cache / "unpacked" / name
    found.parent.mkdir(parents=True, exist_ok=True)
    with locked(cache / f".{name}.lock"):
        if not found.exists():
            if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
                raise ServiceError(lacking)
            with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=cache) as scratch:
                tree = Path(scratch) / "tree"
                for package in _download(Path(scratch), packages, mark, lacking):
                    subprocess.run(["dpkg-deb", "-x", str(package), str(tree)], check=True, capture_output=True)
                tree.rename(found)
    return found


def _download(scratch: Path, packages: Sequence[tuple[str, ...]], mark: str, lacking: str) -> list[Path]:
    """Return the downloaded packages. Where apt's lists are empty, they are read into our own folder."""
    state = scratch / "apt"
    (state / "lists" / "partial").mkdir(parents=True)
    own = ["-o", f"Dir::State::lists={state / 'lists'}", "-o", f"Dir::Cache={state}"]

    def fetch(names: tuple[str, ...], options: list[str]) -> bool:
        before = len(list(scratch.glob("*.deb")))
        for name in names:
            process.run(["apt-get", "-o", "APT::Sandbox::User=", *options, "download", name], mark=mark, cwd=scratch)
            if len(list(scratch.glob("*.deb"))) > before:
                return True
        return False

    left = [names for names in packages if not fetch(names, [])]
    if left:
        process.run(["apt-get", "-o", "APT::Sandbox::User=", *own, "update"], mark=mark, cwd=scratch)
        if not all(fetch(names, own) for names in left):
            raise ServiceError(lacking)
    return sorted(scratch.glob("*.deb"))
