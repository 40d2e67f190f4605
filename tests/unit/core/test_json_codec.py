"""What was stored is read back: nested, of an earlier release, and nothing that is not known."""

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import pytest

from airflow_provider_backpressure.core.json_codec import from_dict


class Size(StrEnum):
    """An enum, which JSON has as its value."""

    SMALL = "small"


@dataclass(frozen=True, kw_only=True)
class Part:
    """A nested value."""

    name: str
    size: Size | None = None


@dataclass(frozen=True, kw_only=True)
class Whole:
    """One field of each shape that is stored."""

    parts: tuple[Part, ...]
    pairs: tuple[tuple[int, str], ...] = ()
    only: Part | None = None
    at: datetime | None = None
    other: int | str = 0


WHOLE = Whole(
    parts=(Part(name="a", size=Size.SMALL), Part(name="b")),
    pairs=((1, "x"), (2, "y")),
    only=Part(name="c"),
    at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    other="text",
)


def test_a_stored_value_is_read_back_with_its_types() -> None:
    read = from_dict(Whole, json.loads(json.dumps(asdict(WHOLE), default=datetime.isoformat)))
    assert read == WHOLE
    assert isinstance(read.parts[0].size, Size)


def test_a_field_of_a_later_release_gets_its_default() -> None:
    assert from_dict(Whole, {"parts": [{"name": "a"}]}) == Whole(parts=(Part(name="a"),))


@pytest.mark.parametrize(
    ("value", "error"),
    [
        pytest.param({}, TypeError, id="missing"),
        pytest.param({"parts": [], "new": 1}, TypeError, id="unknown"),
        pytest.param({"parts": [{"name": "a", "size": "huge"}]}, ValueError, id="no-member"),
        pytest.param({"parts": [], "pairs": [[1]]}, ValueError, id="too-short"),
    ],
)
def test_what_does_not_fit_is_refused(value: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        from_dict(Whole, value)
