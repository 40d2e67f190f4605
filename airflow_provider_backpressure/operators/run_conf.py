"""What a run is triggered for, by ``backpressure`` in its conf."""

from airflow.sdk import Context

from airflow_provider_backpressure.exceptions import InvalidDeclaration

RESTART, FORETELL, ALLOW_DELETES, SAME_ROWS = "restart", "plan", "allow_deletes", "same_rows"
WISHES = (RESTART, FORETELL, ALLOW_DELETES, SAME_ROWS)


def read_wish(context: Context) -> str | None:
    """Return one of the words, ``None`` for a run that continues; ``InvalidDeclaration`` for any other."""
    wish = (context["dag_run"].conf or {}).get("backpressure")
    if wish not in (None, *WISHES):
        *most, last = (f'"{each}"' for each in WISHES)
        raise InvalidDeclaration(f'The run\'s "backpressure" may only be {", ".join(most)} or {last}, not {wish!r}.')
    return wish
