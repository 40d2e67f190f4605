"""What declarations of targets share. Imports no driver, and no library of any format."""

from typing import TYPE_CHECKING

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import InvalidDeclaration

if TYPE_CHECKING:
    from airflow_provider_backpressure.lakes.table import LakeTable


def taken_key(key: tuple[str, ...] | list[str] | None, what: str) -> tuple[str, ...] | None:
    """Return a key as a tuple; :class:`InvalidDeclaration` for a lone name and for none at all."""
    if key is None:
        return None
    if isinstance(key, str):
        raise InvalidDeclaration(f"{what} must be a tuple of names, not the text {key!r}.")
    if not key:
        raise InvalidDeclaration(f"{what} must name at least one column, or be None for the source's key.")
    return tuple(key)


def check_quarantine(most: int | None, what: str) -> None:
    """Raise :class:`InvalidDeclaration` for what is no number of rows that may be kept aside."""
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        raise InvalidDeclaration(f"{what} must be a number of rows of at least 1, not {most!r}.")


def open_lake(kind: str, address: str, endpoint: Endpoint) -> "LakeTable":
    """Return the table; :class:`InvalidDeclaration` names what has to be installed."""
    from airflow_provider_backpressure.lakes.table import open_table

    try:
        return open_table(kind, address, endpoint)
    except ModuleNotFoundError as error:
        raise InvalidDeclaration(
            f"A target of kind {kind} needs the package {error.name}, here and on the executors: "
            f"pip install 'airflow-provider-backpressure[{kind}]'."
        ) from error
