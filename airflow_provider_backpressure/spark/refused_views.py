"""Temporary views of a range's rows, which a transform must not make over Spark Connect.

Spark Connect looks a view up by its name when a job runs, not when the frame is made. Ranges of a lane share a session
and run at the same time, so by then the name may mean the rows of another range: its rows would be committed twice, and
those of this one not at all. Classic Spark binds the view at once.
"""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_provider_backpressure.exceptions import RunnerRefused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CONNECT = "pyspark.sql.connect."
_MAKES_VIEW = re.compile(r"\s*(create|cache)\b", re.IGNORECASE)
_SENTENCE = (
    "The transform makes a temporary view of a range's rows, which Spark Connect looks up only when the job runs: by "
    "then it may hold the rows of another range. Pass the frame instead: "
    "frame.sparkSession.sql('SELECT ... FROM {rows}', rows=frame)."
)
_watched = threading.local()
"""``plan_id``: the number of the plan of the frame that this thread's transform was given."""


@contextmanager
def refuse_views(frame: "DataFrame") -> Iterator[None]:
    """Raise ``RunnerRefused`` in the block where this thread makes a view of the frame, or of what is made of it."""
    if not type(frame).__module__.startswith(CONNECT):
        yield
        return
    session: Any = frame.sparkSession
    _watch(session.client)
    _watched.plan_id = getattr(frame, "_plan")._plan_id  # noqa: B009
    try:
        yield
    finally:
        _watched.plan_id = None


def _watch(client: Any) -> None:
    """Look at each command of a session's client before it is sent; once for each client."""
    execute = client.execute_command
    if getattr(execute, "looks_for_views", False):
        return

    def execute_command(command: Any, *args: Any, **options: Any) -> Any:
        plan_id = getattr(_watched, "plan_id", None)
        if plan_id is not None and _makes_view(command) and plan_id in set(_find(command, "plan_id")):
            raise RunnerRefused(_SENTENCE)
        return execute(command, *args, **options)

    execute_command.looks_for_views = True  # type: ignore[attr-defined]
    client.execute_command = execute_command


def _makes_view(command: Any) -> bool:
    kind = command.WhichOneof("command_type")
    if kind != "sql_command":
        return bool(kind == "create_dataframe_view")
    return any(_MAKES_VIEW.match(query) for query in _find(command, "query", "sql"))


def _find(message: Any, *names: str) -> Iterator[Any]:
    """Yield the values of the plain fields of these names in a message and all that it contains."""
    for field, value in message.ListFields():
        if field.message_type is None:
            if field.name in names:
                yield value
            continue
        several = field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED
        if field.message_type.GetOptions().map_entry:
            parts = value.values() if field.message_type.fields_by_name["value"].message_type else ()
        else:
            parts = value if several else (value,)
        for part in parts:
            yield from _find(part, *names)
