"""Doing things to a real schema registry directly, past the product."""

import io
import json
import struct
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import fastavro

from airflow_provider_backpressure.core.endpoints import NOWHERE, Endpoint
from dev.services import Server

CONN_ID = "registry"


def endpoint_of(server: Server) -> Endpoint:
    """Return the endpoint of a registry."""
    return Endpoint(**{**vars(NOWHERE), "conn_id": CONN_ID, "host": server.url})


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A subject, and its schemas."""

    server: Server
    name: str

    def register(self, schema: Any, references: Sequence[dict[str, Any]] = (), type_: str = "AVRO") -> int:
        """Add a version and return its schema's id."""
        text = schema if type_ == "PROTOBUF" else json.dumps(schema)
        body = {"schema": text, "schemaType": type_, "references": list(references)}
        return int(self._ask("POST", f"subjects/{self.name}/versions", body)["id"])

    def delete(self, version: int) -> None:
        """Delete a version softly."""
        self._ask("DELETE", f"subjects/{self.name}/versions/{version}")

    def delete_permanently(self, version: int) -> None:
        """Delete a version so that no one can ask for it; its schema too, where no other subject has it."""
        self.delete(version)
        self._ask("DELETE", f"subjects/{self.name}/versions/{version}?permanent=true")

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            f"{self.server.url}/{path}",
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={"Content-Type": "application/vnd.schemaregistry.v1+json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)


def framed(payload: bytes, schema_id: int) -> bytes:
    """Return a value behind its schema's id."""
    return struct.pack(">bI", 0, schema_id) + payload


def avro_record(schema: Any, value: Any, schema_id: int) -> bytes:
    """Return a record as Confluent's serializers write it."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return framed(out.getvalue(), schema_id)
