"""How a file gets its final name: by a link that never overwrites, or in a bucket by one conditional PUT."""

import fcntl
import os
import socket
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import pyarrow
from pyarrow import fs

from airflow_provider_backpressure.connectors.lake.markers import FOLDER
from airflow_provider_backpressure.connectors.lake.storage import Place, sync
from airflow_provider_backpressure.core.endpoints import REGION, S3_ADDRESS, Endpoint
from airflow_provider_backpressure.core.poll_policy import PollPolicy, SystemClock
from airflow_provider_backpressure.exceptions import SinkRefused, SinkUnavailable

ATTEMPTS = f"{FOLDER}/attempts"
"""Where files grow, on the same disk as the table and out of every reader's sight."""
LOCK_SECONDS = 60.0
"""Longest wait for the fence, which others hold for the moment in which they move it."""
_POLL = PollPolicy(initial=0.02, maximum=0.02)
_TAKEN = 412
"""What a bucket says where an object of the name is there already."""


class Folder(Protocol):
    """The writing side of a folder of Parquet."""

    def output(self, name: str) -> pyarrow.NativeFile:
        """Open a new file that no reader sees."""
        ...

    def publish(self, name: str, final: str) -> bool:
        """Give a file its final name in one step; ``False``, changing nothing, where that name is taken.

        ``FileNotFoundError`` where the file was taken away from its attempt.
        """
        ...

    def drop(self, name: str) -> None:
        """Delete a file, whether published or not."""
        ...

    def tidy(self, plan_id: str) -> None:
        """Delete unpublished files of a plan."""
        ...

    def check_publishing(self) -> None:
        """Raise ``SinkRefused`` where :meth:`publish` would overwrite a file."""
        ...

    def infos(self, names: Sequence[str]) -> list[fs.FileInfo]:
        """Return what is known of these published names, those that are not there too."""
        ...

    def hold_fence(self) -> AbstractContextManager[None]:
        """Hold the fence alone: nobody else moves it meanwhile."""
        ...

    def cut_off(self) -> None:
        """Take away the files of all attempts that are under way, so that none of them can be published any more."""
        ...


def open_folder(place: Place, endpoint: Endpoint) -> Folder:
    """Return the writing side of a place."""
    return LocalFolder(place) if place.local else BucketFolder(place, endpoint)


class LocalFolder:
    """Implements :class:`Folder` on a file system that has hard links and ``flock``.

    Attempts hold no lock, which one that is frozen would keep for ever. A process that moves the fence says so first
    and then removes their files: an attempt that has looked before that finds nothing left to be published.
    """

    def __init__(self, place: Place) -> None:
        self._place = place

    def output(self, name: str) -> pyarrow.NativeFile:
        return self._place.output(_get_temporary_name(name))

    def publish(self, name: str, final: str) -> bool:
        """See :meth:`Folder.publish`. The rows are on the disk before the name is, and the name before this returns."""
        growing, there = Path(self._place.at(_get_temporary_name(name))), Path(self._place.at(final))
        sync(growing)
        try:
            os.link(growing, there)
        except FileExistsError:
            published = False
        else:
            published = True
            growing.unlink(missing_ok=True)
        sync(there.parent)
        return published

    def drop(self, name: str) -> None:
        for one in (name, _get_temporary_name(name)):
            self._place.delete(one)

    def tidy(self, plan_id: str) -> None:
        for info in self._place.names(ATTEMPTS):
            if info.base_name.startswith(f"{plan_id}-"):
                self._place.delete(f"{ATTEMPTS}/{info.base_name}")

    def check_publishing(self) -> None:
        """See :meth:`Folder.check_publishing`: a link never overwrites."""

    def infos(self, names: Sequence[str]) -> list[fs.FileInfo]:
        return list(self._place.files.get_file_info([self._place.at(name) for name in names]))

    def cut_off(self) -> None:
        """See :meth:`Folder.cut_off`. The folder goes in one step, and then the files in it."""
        gone = f"{ATTEMPTS}.{uuid.uuid4().hex}"
        try:
            Path(self._place.at(ATTEMPTS)).rename(self._place.at(gone))
        except FileNotFoundError:
            return
        self._place.remove(gone)

    @contextmanager
    def hold_fence(self) -> Iterator[None]:
        """See :meth:`Folder.hold_fence`. ``SinkUnavailable`` names the process that does not let it go."""
        path = Path(self._place.at(f"{FOLDER}/lock"))
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if not any(_lock(handle) for _ in _POLL.tries(timeout=LOCK_SECONDS, clock=SystemClock())):
                raise SinkUnavailable(
                    f"{self._place.path} is locked for {LOCK_SECONDS:g} s by {_holder(handle)}, which begins a "
                    "plan or repairs a range: end that process where it is stuck."
                )
            os.truncate(handle, 0)
            os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
            yield
        finally:
            os.close(handle)


class BucketFolder:
    """Implements :class:`Folder` in a bucket that knows conditional writes. A file grows on the task's own disk.

    A bucket has no lock: between the look at the fence and the end of the PUT a newer plan may come, and an older
    one's file with it. Under one plan the name itself keeps every double out.
    """

    def __init__(self, place: Place, endpoint: Endpoint) -> None:
        self._place = place
        self._endpoint = endpoint
        self._growing = Path(tempfile.gettempdir())

    def output(self, name: str) -> pyarrow.NativeFile:
        return pyarrow.OSFile(str(self._growing / name), "wb")

    def publish(self, name: str, final: str) -> bool:
        from botocore.exceptions import ClientError

        bucket, _, key = self._place.at(final).partition("/")
        growing = self._growing / name
        try:
            with growing.open("rb") as body:
                self._client().put_object(Bucket=bucket, Key=key, Body=body, IfNoneMatch="*")
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] == _TAKEN:
                return False
            raise OSError(f"the bucket refused {final}: {error}") from error
        growing.unlink(missing_ok=True)
        return True

    def drop(self, name: str) -> None:
        (self._growing / name).unlink(missing_ok=True)
        self._place.delete(name)

    def tidy(self, plan_id: str) -> None:
        """See :meth:`Folder.tidy`: a task's disk is swept by its runner."""

    def check_publishing(self) -> None:
        """See :meth:`Folder.check_publishing`. Some servers know no conditional write, and do not say so."""
        probe, published = f"probe-{uuid.uuid4().hex}", list[bool]()
        try:
            for _ in range(2):
                with self.output(probe) as stream:
                    stream.write(b"probe")
                published.append(self.publish(probe, f"{FOLDER}/{probe}"))
        finally:
            (self._growing / probe).unlink(missing_ok=True)
            # A login without the right to delete can write ranges all the same.
            with suppress(OSError):
                self._place.delete(f"{FOLDER}/{probe}")
        if published != [True, False]:
            raise SinkRefused(
                f"The server of {self._place.path} overwrites objects in spite of If-None-Match: two attempts at a "
                "range could both write. Use a server with conditional writes, or IcebergSink with a catalog."
            )

    def infos(self, names: Sequence[str]) -> list[fs.FileInfo]:
        return list(self._place.files.get_file_info([self._place.at(name) for name in names]))

    @contextmanager
    def hold_fence(self) -> Iterator[None]:
        """See :meth:`Folder.hold_fence`: it cannot be held here."""
        yield

    def cut_off(self) -> None:
        """See :meth:`Folder.cut_off`: what grows on a task's disk is out of reach."""

    def _client(self) -> Any:
        import boto3

        return boto3.client(
            "s3",
            aws_access_key_id=self._endpoint.user or None,
            aws_secret_access_key=self._endpoint.password or None,
            region_name=self._endpoint.options.get(REGION),
            endpoint_url=self._endpoint.options.get(S3_ADDRESS),
        )


def _get_temporary_name(name: str) -> str:
    """Return where a file grows: not even a reader that looks for ``**/*.parquet`` takes it for data."""
    return f"{ATTEMPTS}/{name}.growing"


def _holder(handle: int) -> str:
    """Return who holds a lock, as it says itself; an earlier release did not."""
    return os.pread(handle, 200, 0).decode(errors="replace") or "another process"


def _lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
