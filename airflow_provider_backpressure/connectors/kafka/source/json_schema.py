"""JSON Schemas: the column that each property becomes."""

import json
from collections.abc import Mapping
from typing import Any

from airflow_provider_backpressure.exceptions import InvalidDeclaration

_TYPES = {"boolean": "boolean", "integer": "bigint", "number": "numeric", "string": "text", "null": None}
# A day or moment has to be one; of other formats a text is taken as it is.
_FORMATS = {"date": "date", "date-time": "timestamp with time zone", "uuid": "uuid"}
_ELSEWHERE = (
    *("$ref", "allOf", "oneOf", "anyOf", "if", "then", "else", "patternProperties", "$dynamicRef", "$recursiveRef"),
    "extends",
)
"""What a schema may have that can name properties in another place."""
_BY_NAME = ("dependentSchemas", "dependencies")
"""The same, by the property that demands them; of a list of names alone it says nothing new."""
_REST = ("additionalProperties", "unevaluatedProperties")
"""What may give the properties that are not named a schema."""
_HERE = "#/"
_DEEPEST = 20


def column_types(schema: str) -> dict[str, str | None]:
    """Return the type of each property, by name; ``None`` where every value is null. Empty: the value is taken whole.

    That is one that is no object, or whose properties are not all in one place. What may be of several types, and what
    has further parts, is JSON. :class:`InvalidDeclaration` for no JSON Schema.
    """
    try:
        whole = json.loads(schema)
        found = _resolve(whole, whole)
        properties = found.get("properties", {}) if isinstance(found, dict) else {}
        return {str(name): _column_type(each, whole) for name, each in properties.items()}
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InvalidDeclaration(f"This is no JSON Schema: {error}.") from error


def _column_type(schema: Any, whole: Mapping[str, Any]) -> str | None:
    found = _resolve(schema, whole)
    if not isinstance(found, dict):
        return "json"
    kinds = found.get("type", ())
    present = [kind for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind != "null"]
    if len(present) == 1:
        if present == ["string"]:
            return _FORMATS.get(found.get("format", ""), "text")
        return _TYPES.get(present[0], "json")
    return None if kinds and not present else "json"


def _resolve(schema: Any, whole: Mapping[str, Any], depth: int = 0) -> Any:
    """Return what a schema is apart from null: behind a reference within it, and the one choice beside null."""
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return None
    if len(_find_places(schema)) > 1:
        return None
    place = schema.get("$ref")
    if isinstance(place, str):
        return _resolve(_find(place, whole), whole, depth + 1)
    choices = schema.get("oneOf") or schema.get("anyOf")
    if not choices:
        return schema
    present = [each for each in choices if not isinstance(each, dict) or each.get("type") != "null"]
    return _resolve(present[0], whole, depth + 1) if len(present) == 1 else None


def _find_places(schema: Mapping[str, Any]) -> list[str]:
    """Return the parts of a schema that name properties."""
    found = [name for name in _ELSEWHERE if schema.get(name)]
    found += [name for name in _BY_NAME if any(isinstance(each, dict) for each in schema.get(name, {}).values())]
    found += [name for name in _REST if isinstance(schema.get(name), dict) and schema[name]]
    return [*found, *(["properties"] if "properties" in schema else [])]


def _find(place: str, whole: Any) -> Any:
    """Return what a reference names within the schema; ``None`` for one that leads elsewhere."""
    if not place.startswith(_HERE):
        return None
    for name in place.removeprefix(_HERE).split("/"):
        whole = whole.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(whole, dict) else None
    return whole
