"""A user's callbacks for events that are reported from the triggerer, between two runs."""

import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import Any, cast

from airflow.sdk import BaseNotifier
from airflow.sdk.definitions.context import Context
from airflow.sdk.module_loading import import_string  # type: ignore[attr-defined]
from asgiref.sync import sync_to_async

from airflow_provider_backpressure.airflow_compat import Callback
from airflow_provider_backpressure.core.progress.notified_events import KEY, Event
from airflow_provider_backpressure.exceptions import InvalidDeclaration

log = logging.getLogger(__name__)


def as_callbacks(on_event: Callback | Sequence[Callback] | None) -> list[dict[str, Any]]:
    """Return the callbacks in plain values; :class:`InvalidDeclaration` for what cannot travel to the triggerer."""
    found = () if on_event is None else tuple(on_event) if isinstance(on_event, list | tuple) else (on_event,)
    strange = next((each for each in found if not isinstance(each, Callback)), None)
    if strange is not None:
        raise InvalidDeclaration(
            "watch_source reports from the triggerer, so its on_event takes AsyncCallback or SyncCallback with a "
            f"notifier's class and arguments, not {type(strange).__name__}."
        )
    return [{"path": each.path, "kwargs": dict(each.kwargs)} for each in found]


async def report_event(callbacks: Sequence[Mapping[str, Any]], reported: Event) -> None:
    """Pass an event to every callback; what fails is logged, and fails nothing."""
    log.warning("%s: %s", reported.kind, reported.sentence)
    for each in callbacks:
        try:
            await _call(each["path"], each["kwargs"], cast("Context", {KEY: reported.to_json()}))
        except Exception:
            log.exception("%s failed to handle %s.", each["path"], reported.kind)


async def _call(path: str, arguments: Mapping[str, Any], context: Context) -> None:
    called = await sync_to_async(import_string)(path)
    if not (isinstance(called, type) and issubclass(called, BaseNotifier)):
        given = {**arguments, "context": context}
        await (called(**given) if inspect.iscoroutinefunction(called) else sync_to_async(called)(**given))
        return
    # A notifier renders its templates in itself, so each event gets a notifier of its own.
    notifier = called(**arguments)
    if called.async_notify is BaseNotifier.async_notify:
        await sync_to_async(notifier)(context)
    else:
        notifier.context = context
        await notifier
