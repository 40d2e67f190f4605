"""Errors as text and back."""

import pytest

from airflow_provider_backpressure import exceptions
from airflow_provider_backpressure.exceptions import from_text, to_text


@pytest.mark.parametrize("name", ["PlanSuperseded", "RangeFailed", "SourceRefused", "SinkUnavailable"])
def test_an_error_is_found_again_in_a_trace(name: str) -> None:
    """With its class and its sentence, on one line."""
    error = getattr(exceptions, name)("The sink\nrefused: [x] {y} %s.")
    trace = f"Traceback (most recent call last):\n  raise X\nTaskFailed: {to_text(error)}\n\nJVM stacktrace:\norg.x"
    found = from_text(trace)
    assert type(found) is type(error)
    assert str(found) == "The sink refused: [x] {y} %s."


def test_the_last_one_counts() -> None:
    """Earlier ones are the causes of it."""
    text = to_text(exceptions.SinkUnavailable("a")) + " then " + to_text(exceptions.RangeFailed("b"))
    assert isinstance(from_text(text), exceptions.RangeFailed)


@pytest.mark.parametrize(
    "text", ["", "nothing", "[backpressure:os] x [/backpressure]", "[backpressure:Nope] x [/backpressure]"]
)
def test_other_text_is_none(text: str) -> None:
    """Only errors of the tree are made."""
    assert from_text(text) is None
