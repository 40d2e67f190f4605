"""The one library that MySQL needs and small systems lack; fetched as a Debian package without root."""

import ctypes
import shutil
import subprocess
import tempfile
from pathlib import Path

from dev.downloads import locked
from dev.servers import process
from dev.servers.server import Place, ServiceError

LIBRARY = "libaio.so.1"
PACKAGES = ("libaio1", "libaio1t64")  # the second from Debian 13 and Ubuntu 24.04 on
LACKING = f"MySQL needs {LIBRARY}: install it (Debian: `apt-get install libaio1`; Fedora: `dnf install libaio`)."


def folder(place: Place) -> str:
    """Return the folder to look for the library in; empty where the system has it."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return str(_fetched(place.downloads.folder, place.mark))
    return ""


def _fetched(cache: Path, mark: str) -> Path:
    found = cache / "unpacked" / "libaio"
    found.parent.mkdir(parents=True, exist_ok=True)
    with locked(cache / ".libaio.lock"):
        if not found.exists():
            if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
                raise ServiceError(LACKING)
            with tempfile.TemporaryDirectory(prefix=".libaio-", dir=cache) as scratch:
                _unpack(_package(Path(scratch), mark), found)
    return found


def _package(scratch: Path, mark: str) -> Path:
    """Download the package; apt checks its signature. Where its lists are empty, they are read into our own folder."""
    state = scratch / "apt"
    (state / "lists" / "partial").mkdir(parents=True)
    own = ["-o", f"Dir::State::lists={state / 'lists'}", "-o", f"Dir::Cache={state}", "-o", "APT::Sandbox::User="]
    for options in ([], own):
        if options:
            process.run(["apt-get", *options, "update"], mark=mark, cwd=scratch)
        for package in PACKAGES:
            command = ["apt-get", "-o", "APT::Sandbox::User=", *options, "download", package]
            process.run(command, mark=mark, cwd=scratch)
            if found := next(scratch.glob("*.deb"), None):
                return found
    raise ServiceError(LACKING)


def _unpack(package: Path, folder: Path) -> None:
    tree = package.parent / "tree"
    subprocess.run(["dpkg-deb", "-x", str(package), str(tree)], check=True, capture_output=True)
    file = next(found for found in tree.rglob(f"{LIBRARY}*") if not found.is_symlink())
    ready = package.parent / "ready"
    ready.mkdir()
    file.rename(ready / LIBRARY)
    ready.rename(folder)
