"""How MySQL's errors leave a task that reads."""

from airflow_provider_backpressure.exceptions import SourceRefused, SourceUnavailable
from airflow_provider_backpressure.mysql.errors import Errors

SOURCE = Errors(refused=SourceRefused, unavailable=SourceUnavailable)
