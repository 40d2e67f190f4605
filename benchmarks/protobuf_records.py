"""The records of :mod:`benchmarks.registry` in Protobuf, flat and with messages within messages."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc_tools
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

SCHEMA = """syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
enum State { NEW = 0; PAID = 1; SENT = 2; }
message Order {
  int64 id = 1; string customer = 2; State state = 3; double amount = 4; int32 quantity = 5; double weight = 6;
  bool express = 7; string day = 8; google.protobuf.Timestamp at = 9; optional string note = 10;
  optional int64 parent = 11; string address = 12;
}
message Basket {
  int64 id = 1; string customer = 2; Address address = 3; repeated Line lines = 4; repeated string tags = 5;
}
message Address { string street = 1; string city = 2; int32 zip = 3; }
message Line { string sku = 1; int32 count = 2; double price = 3; }
"""
FLAT, NESTED = "shop.Order", "shop.Basket"
LINES = 3
"""Messages in the list of a nested record."""
PLACES = {FLAT: b"\0", NESTED: b"\2\2"}
"""Where each message is in the schema, as Confluent's serializers write it before the value."""


def make_classes(folder: Path) -> Mapping[str, Any]:
    """Return the classes of both messages, as Protobuf's own compiler makes them."""
    (folder / "orders.proto").write_text(SCHEMA)
    own, out = Path(grpc_tools.__file__).parent / "_proto", folder / "descriptors"
    words = ["protoc", f"-I{folder}", f"-I{own}", "--include_imports", f"--descriptor_set_out={out}", "orders.proto"]
    assert protoc.main(words) == 0, "the compiler refuses the schema"
    pool = descriptor_pool.DescriptorPool()
    for each in descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file:
        pool.Add(each)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in (FLAT, NESTED)}


def to_flat(classes: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> list[bytes]:
    """Return each record as an ``Order``; Protobuf has no decimals and no dates."""
    changed = ({**each, "amount": float(each["amount"]), "day": each["day"].isoformat()} for each in records)
    return [classes[FLAT](**each).SerializeToString() for each in changed]


def to_nested(classes: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> list[bytes]:
    """Return each record as a ``Basket``: a message and a list of messages within one."""
    return [
        classes[NESTED](
            id=each["id"],
            customer=each["customer"],
            address={"street": each["address"], "city": "Berlin", "zip": 10_115 + each["id"] % 9},
            lines=[{"sku": f"sku-{at}", "count": at, "price": at / 7} for at in range(LINES)],
            tags=["gift", "express"],
        ).SerializeToString()
        for each in records
    ]
