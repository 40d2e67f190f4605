"""What Airflow 3.1, 3.2 and 3.3 name differently. No other module looks at Airflow's version.

Type checkers see the names of the newest version.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow import __version__
from packaging.version import Version

if TYPE_CHECKING:
    from airflow.sdk import conf as conf
    from airflow.sdk.definitions.callback import Callback as Callback
    from airflow.sdk.exceptions import AirflowException as AirflowException
    from airflow.sdk.exceptions import AirflowFailException as AirflowFailException
    from airflow.sdk.exceptions import AirflowNotFoundException as AirflowNotFoundException
    from airflow.sdk.exceptions import AirflowRescheduleException as AirflowRescheduleException
    from airflow.sdk.exceptions import AirflowSkipException as AirflowSkipException
    from airflow.sdk.exceptions import AirflowTaskTimeout as AirflowTaskTimeout

AIRFLOW = Version(__version__).release[:2]
"""Major and minor version."""

_ERRORS = (
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowRescheduleException",
    "AirflowSkipException",
    "AirflowTaskTimeout",
)
_MODULES = {"conf": "airflow.sdk", "Callback": "airflow.sdk.definitions.callback"} | dict.fromkeys(
    _ERRORS, "airflow.sdk.exceptions"
)
_MODULES_OF_3_1 = {"conf": "airflow.configuration", "Callback": "airflow.sdk.definitions.deadline"} | dict.fromkeys(
    _ERRORS, "airflow.exceptions"
)


def __getattr__(name: str) -> Any:
    # Imported when asked for: parsing a DAG needs a few of them only, and some modules take long to import.
    modules = _MODULES if AIRFLOW >= (3, 2) else _MODULES_OF_3_1
    if name not in modules:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(modules[name]), name)


def initialize_metrics() -> None:
    """Let metrics leave this process: Airflow does that itself for tasks, but not for what runs in a trigger."""
    if AIRFLOW < (3, 2):
        return  # the first that is sent does it
    factory = import_module("airflow.sdk.observability.metrics.stats_utils").get_stats_factory
    if AIRFLOW < (3, 3):
        _metrics().initialize(factory=factory(_metrics()))
        return
    legacy = import_module(_MODULES["conf"]).conf.getboolean("metrics", "legacy_names_on", fallback=True)
    _metrics().initialize(factory=factory(), export_legacy_names=legacy)


def send_gauge(name: str, value: float, tags: dict[str, str]) -> None:
    """Send one figure as Airflow sends its own."""
    _metrics().gauge(name, value, tags=tags)


def keep_asset_state(context: Mapping[str, Any], asset: Any, name: str, value: Any) -> None:
    """Keep a value in the asset's state store; Airflow before 3.3 has none, and knows it by the asset's event only."""
    if AIRFLOW >= (3, 3):
        context["asset_state_store"][asset].set(name, value)


def _metrics() -> Any:
    if AIRFLOW < (3, 2):
        return import_module("airflow.stats").Stats
    stats = import_module("airflow.sdk.observability.stats")
    return stats if AIRFLOW >= (3, 3) else stats.Stats
