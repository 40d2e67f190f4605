"""How MySQL's errors leave a task that reads."""

from airflow_provider_backpressure.connectors.mysql.errors import Errors
from airflow_provider_backpressure.exceptions import SourceRefused, SourceUnavailable

SOURCE = Errors(refused=SourceRefused, unavailable=SourceUnavailable)
