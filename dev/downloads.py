"""Pinned artifacts of the central Maven repository, fetched by the Ivy that PySpark ships, checked and kept.

``BACKPRESSURE_CACHE`` names another folder to keep them in, ``BACKPRESSURE_MAVEN_MIRROR`` another repository's address.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any
from xml.sax.saxutils import quoteattr

from dev.prerequisites import missing
from dev.servers import process

REPOSITORY = Path(__file__).resolve().parent.parent
PINNED = Path(__file__).with_name("artifacts.json")
# Python 3.11.2, which Debian 12 has, does not know filters yet; later ones warn without.
SAFELY: dict[str, Any] = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}


class DownloadError(Exception):
    """Something could not be fetched, or is not what was pinned."""


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """One pinned jar or archive."""

    organisation: str
    name: str
    version: str
    extension: str = "jar"
    classifier: str = ""
    """Which of several files of one version it is; empty for the jar itself."""
    sha256: str

    @property
    def file_name(self) -> str:
        """Name in the cache."""
        return f"{self.organisation}-{self.name}-{self.version}.{self.extension}"

    @property
    def dependency(self) -> str:
        """Ivy's element for it."""
        place = f'org="{self.organisation}" name="{self.name}" rev="{self.version}" conf="default->default"'
        if not self.classifier:
            return f"<dependency {place}/>"
        kind = f'type="{self.extension}" ext="{self.extension}" m:classifier="{self.classifier}"'
        return f'<dependency {place}><artifact name="{self.name}" {kind}/></dependency>'


def pinned(group: str) -> list[Artifact]:
    """Return what a group consists of; DownloadError where the group is not pinned."""
    groups = json.loads(PINNED.read_text())
    if group not in groups:
        raise DownloadError(f"Nothing is pinned as {group!r} in {PINNED.name}; there are {', '.join(sorted(groups))}.")
    found = []
    for entry in groups[group]:
        names = ("organisation", "name", "version", "extension", "classifier")
        parts = dict(zip(names, entry["coordinate"].split(":"), strict=False))
        found.append(Artifact(**parts, sha256=entry["sha256"]))
    return found


def default_folder() -> Path:
    """Return the cache that all sessions of this checkout share."""
    return Path(os.environ.get("BACKPRESSURE_CACHE") or REPOSITORY / ".cache" / "downloads").resolve()


@dataclass(frozen=True, kw_only=True)
class Downloads:
    """The cache. Any number of processes may use it at once."""

    folder: Path
    mark: str = ""
    """Whom a download serves, so that it is found and ended with that server."""

    def group(self, name: str) -> list[Path]:
        """Return the files of a pinned group, fetched where they are not there yet."""
        artifacts = pinned(name)
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / f".{name}.lock"):
            missing = [artifact for artifact in artifacts if not self._whole(artifact)]
            if missing:
                self._fetch(missing, scratch_of=name)
        return [self.folder / artifact.file_name for artifact in artifacts]

    def unpacked(self, name: str, *, member: str = "", into: Path | None = None) -> Path:
        """Return the folder with a group's archive unpacked; `member`: how the name of one inside of a jar ends."""
        (jar,) = self.group(name)
        parent = into or self.folder / "unpacked"
        parent.mkdir(parents=True, exist_ok=True)
        folder = parent / f"{name}-{pinned(name)[0].sha256[:12]}"
        with locked(parent / f".{name}.lock"):
            if not folder.exists():
                with _scratch(parent, name) as scratch:
                    _unpack(jar, member, scratch / "tree")
                    (scratch / "tree").rename(folder)
        return folder

    def _whole(self, artifact: Artifact) -> bool:
        """Whether the cached file is the pinned one: hashed once, then known by its stamp until it changes."""
        file = self.folder / artifact.file_name
        try:
            status = file.stat()
        except FileNotFoundError:
            return False
        stamp = file.with_suffix(".verified")
        expected = f"{artifact.sha256} {status.st_size} {status.st_mtime_ns}"
        with contextlib.suppress(FileNotFoundError):
            if stamp.read_text() == expected:
                return True
        if _sha256(file) != artifact.sha256:
            return False
        _write(stamp, expected)
        return True

    def _fetch(self, artifacts: list[Artifact], *, scratch_of: str) -> None:
        with _scratch(self.folder, scratch_of) as scratch:
            _ivy(artifacts, scratch, self.mark)
            for artifact in artifacts:
                fetched = scratch / "out" / artifact.file_name
                found = _sha256(fetched) if fetched.exists() else "nothing"
                if found != artifact.sha256:
                    raise DownloadError(
                        f"{artifact.file_name} is not what {PINNED.name} pins:"
                        f" expected SHA-256 {artifact.sha256}, got {found}."
                    )
                fetched.replace(self.folder / artifact.file_name)
                self._whole(artifact)


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold a lock among processes and threads; the kernel lets go of it when the holder dies."""
    with file.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _ivy(artifacts: list[Artifact], scratch: Path, mark: str) -> None:
    """Fetch exactly these jars into `out`, without asking for their dependencies: those are pinned too."""
    mirror = os.environ.get("BACKPRESSURE_MAVEN_MIRROR")
    root = f" root={quoteattr(mirror)}" if mirror else ""
    # Without POMs 46 jars take 6 s instead of 38 s; and checksums are ours, which the server cannot change.
    settings = (
        '<ivysettings><settings defaultResolver="central"/><resolvers><ibiblio name="central" m2compatible="true"'
        f' usepoms="false" useMavenMetadata="false" checksums=""{root}/></resolvers></ivysettings>'
    )
    wanted = "".join(one.dependency for one in artifacts)
    module = (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="dev" module="services"/><configurations>'
        f'<conf name="default"/></configurations><dependencies>{wanted}</dependencies></ivy-module>'
    )
    (scratch / "settings.xml").write_text(settings)
    (scratch / "ivy.xml").write_text(module)
    pattern = f"{scratch}/out/[organisation]-[artifact]-[revision].[ext]"
    command = [java(), "-jar", str(_ivy_jar()), "-settings", "settings.xml", "-ivy", "ivy.xml"]
    command += ["-cache", str(scratch / "cache"), "-retrieve", pattern, "-types", "jar", "tar.gz"]
    try:
        done = process.run(command, mark=mark, cwd=scratch)
    except FileNotFoundError:
        raise DownloadError(missing() or f"{command[0]} is not there: set JAVA_HOME.") from None
    if done.returncode != 0:
        names = ", ".join(one.name for one in artifacts[:3]) + (" …" if len(artifacts) > 3 else "")
        raise DownloadError(
            f"{names} could not be fetched: is the Maven repository reachable? BACKPRESSURE_MAVEN_MIRROR names another."
            f"\n{(done.stdout + done.stderr)[-1500:]}"
        )


def java() -> str:
    """Return the Java that Spark would take."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"


def _ivy_jar() -> Path:
    spec = find_spec("pyspark")
    jars = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar")) if spec and spec.origin else []
    if not jars:
        raise DownloadError("PySpark is not installed for this Python: use the one in .venv (`make test` creates it).")
    return jars[-1]


def _unpack(file: Path, member: str, folder: Path) -> None:
    with contextlib.ExitStack() as stack:
        if member:
            outer = stack.enter_context(zipfile.ZipFile(file))
            (inner,) = (name for name in outer.namelist() if name.endswith(member))
            packed: IO[bytes] = stack.enter_context(outer.open(inner))
        else:
            packed = stack.enter_context(file.open("rb"))
        stack.enter_context(tarfile.open(fileobj=packed, mode="r|*")).extractall(folder, **SAFELY)
    for inside in (folder, *folder.rglob("*/")):
        inside.chmod(0o755)  # whatever the umask: PostgreSQL refuses to run as root, and another account must read it


@contextlib.contextmanager
def _scratch(parent: Path, name: str) -> Iterator[Path]:
    """Give a folder to work in; the lock of that name is held, so what is there was left by a killed process."""
    folder = parent / f".{name}.scratch"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _write(file: Path, text: str) -> None:
    fresh = file.with_name(f"{file.name}.{os.getpid()}")
    fresh.write_text(text)
    fresh.replace(file)
