"""Folders on a local disk or in a bucket, by one address."""

import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import fs

from airflow_provider_backpressure.core.endpoints import REGION, S3_ADDRESS, Endpoint
from airflow_provider_backpressure.exceptions import InvalidDeclaration

S3 = "s3://"


def check_characters(text: str, what: str, misread: str) -> None:
    """Raise ``InvalidDeclaration`` for characters that the format's library takes for another folder's name."""
    found = re.search(misread, text)
    if found:
        raise InvalidDeclaration(
            f"{what} must not contain {found[0]}, not {text!r}: the table's library would take it for another folder. "
            "Name the folder without it."
        )


def check_path(path: str, what: str) -> str:
    """Return a path as it is kept; :class:`InvalidDeclaration` unless it is absolute, or ``s3://bucket/prefix``."""
    text = path.removeprefix("file://").rstrip("/")
    if ".." in text.split("/") or "\x00" in text:
        # By another name the same folder would be another target, with a fence of its own.
        raise InvalidDeclaration(f"{what} must name its folder without '..', not {path!r}.")
    if text.startswith(S3):
        bucket, _, prefix = text.removeprefix(S3).partition("/")
        if bucket and prefix:
            return text
    elif text.startswith("/"):
        return text
    raise InvalidDeclaration(f"{what} must be an absolute path or s3://bucket/prefix, not {path!r}.")


class Place:
    """A folder. Names are relative to it, with slashes. Errors of the file system are ``OSError``."""

    def __init__(self, path: str, endpoint: Endpoint) -> None:
        self.path = path
        self.local = not path.startswith(S3)
        self.root = path.removeprefix(S3)
        self.files: fs.FileSystem = fs.LocalFileSystem() if self.local else _bucket(endpoint)

    def at(self, name: str) -> str:
        """Return the path of a name as the file system has it."""
        return f"{self.root}/{name}"

    def read(self, name: str) -> bytes | None:
        """Return what a small file holds; ``None`` where it is not there."""
        try:
            with self.files.open_input_stream(self.at(name)) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Put a small file in its place at once, over whatever is there; it outlives a crash of the machine."""
        if not self.local:
            with self.files.open_output_stream(self.at(name)) as stream:
                stream.write(content)
            return
        path = Path(self.at(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
        fresh.write_bytes(content)
        sync(fresh)
        fresh.replace(path)
        sync(path.parent)

    def output(self, name: str) -> pyarrow.NativeFile:
        """Open a new file for writing."""
        if self.local:
            Path(self.at(name)).parent.mkdir(parents=True, exist_ok=True)
        return self.files.open_output_stream(self.at(name))

    def input(self, name: str) -> pyarrow.NativeFile:
        """Open a file for reading at any place of it."""
        return self.files.open_input_file(self.at(name))

    def names(self, folder: str = "") -> list[fs.FileInfo]:
        """Return the files of a folder, not of those below it; none where it is not there."""
        found = self.files.get_file_info(fs.FileSelector(self.at(folder).rstrip("/"), allow_not_found=True))
        return [info for info in found if info.type == fs.FileType.File]

    def walk(self) -> Iterator[tuple[str, int]]:
        """Yield the name and size in bytes of every file, also of those in folders below."""
        for info in self.files.get_file_info(fs.FileSelector(self.root, allow_not_found=True, recursive=True)):
            if info.type == fs.FileType.File:
                yield info.path.removeprefix(self.root).lstrip("/"), info.size or 0

    def delete(self, name: str) -> None:
        """Delete a file; nothing where it is not there."""
        try:
            self.files.delete_file(self.at(name))
        except FileNotFoundError:
            return

    def remove(self, folder: str | None = None) -> None:
        """Delete a folder in it, or itself, with all that is in there; nothing where it is not there."""
        try:
            self.files.delete_dir(self.root if folder is None else self.at(folder))
        except FileNotFoundError:
            return

    def holds(self, folder: str) -> bool:
        """Whether there is a folder of this name in it."""
        return bool(self.files.get_file_info(self.at(folder)).type == fs.FileType.Directory)

    def sync(self, name: str) -> None:
        """Let a file outlive a crash of the machine, where that is not so already."""
        if self.local:
            sync(Path(self.at(name)))


def sync(path: Path) -> None:
    """Write a file or folder through to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _bucket(endpoint: Endpoint) -> fs.FileSystem:
    options: dict[str, Any] = {}
    if endpoint.user:
        options |= {"access_key": endpoint.user, "secret_key": endpoint.password}
    if endpoint.options.get(REGION):
        options["region"] = endpoint.options[REGION]
    if address := endpoint.options.get(S3_ADDRESS):
        scheme, _, host = address.rpartition("://")
        options |= {"endpoint_override": host, "scheme": scheme or "https"}
    return fs.S3FileSystem(**options)
