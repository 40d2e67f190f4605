"""Protobuf's own compiler and library, as what the product's reading is compared with."""

import struct
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

MAIN = "main.proto"


def compile_files(files: Mapping[str, str]) -> descriptor_pool.DescriptorPool:
    """Return the types of these files, as Protobuf's own compiler makes them of their texts."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / name).write_text(text)
        own = Path(protoc.__file__).parent / "_proto"
        out = Path(folder) / "out"
        words = ["protoc", f"-I{folder}", f"-I{own}", "--include_imports", f"--descriptor_set_out={out}", *files]
        assert protoc.main(words) == 0, "the compiler refuses the schema"
        found = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for each in found.file:
        pool.Add(each)
    return pool


def message_class(text: str, name: str, others: Mapping[str, str] | None = None) -> Any:
    """Return the class of a message of a schema; ``others``: the files that it imports."""
    pool = compile_files({MAIN: text, **(others or {})})
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def framed(payload: bytes, schema_id: int = 1, path: Sequence[int] = (0,)) -> bytes:
    """Return a message as Confluent's serializers write it: behind its schema's id and its place in the schema."""
    place = b"\0"
    if tuple(path) != (0,):
        assert max(*path, len(path)) < 64, "one byte for each"
        place = bytes(each << 1 for each in (len(path), *path))
    return struct.pack(">bI", 0, schema_id) + place + payload
