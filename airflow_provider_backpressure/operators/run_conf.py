"""What a run is triggered for, by ``backpressure`` in its conf: beginning again, foretelling, or deleting many rows."""

from airflow.sdk import Context

from airflow_provider_backpressure.exceptions import InvalidDeclaration

RESTART, FORETELL, ALLOW_DELETES = "restart", "plan", "allow_deletes"


def read_wish(context: Context) -> str | None:
    """Return one of the words, ``None`` for a run that continues; ``InvalidDeclaration`` for any other."""
    wish = (context["dag_run"].conf or {}).get("backpressure")
    if wish not in (None, RESTART, FORETELL, ALLOW_DELETES):
        raise InvalidDeclaration(
            f'The run\'s "backpressure" may only be "{RESTART}", "{FORETELL}" or "{ALLOW_DELETES}", not {wish!r}.'
        )
    return wish
