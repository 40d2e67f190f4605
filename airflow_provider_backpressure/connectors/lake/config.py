"""What declarations of tables of files share. Imports no library of any format."""

from typing import TYPE_CHECKING

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import InvalidDeclaration

if TYPE_CHECKING:
    from airflow_provider_backpressure.connectors.lake.table import LakeTable


def open_lake(kind: str, address: str, endpoint: Endpoint) -> "LakeTable":
    """Return the table; :class:`InvalidDeclaration` names what has to be installed."""
    from airflow_provider_backpressure.connectors.lake.table import open_table

    try:
        return open_table(kind, address, endpoint)
    except ModuleNotFoundError as error:
        raise InvalidDeclaration(
            f"A target of kind {kind} needs the package {error.name}, here and on the executors: "
            f"pip install 'airflow-provider-backpressure[{kind}]'."
        ) from error
