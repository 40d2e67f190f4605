"""The error of one task for many tables when some of them have failed: its heading, and the tables that it lists."""

from collections.abc import Mapping

from airflow_provider_backpressure.airflow_compat import AirflowFailException
from airflow_provider_backpressure.base_operator import failure_of
from airflow_provider_backpressure.exceptions import BackpressureError, TablesFailed, Terminal
from airflow_provider_backpressure.operators.several_tables import TablePair

NAMED = 20
"""Most tables that are named in the error; the log has them all."""


def check_failed(
    failed: Mapping[TablePair, Exception],
    *,
    total: int,
    before: Mapping[str, str],
    log: BackpressureError | None = None,
) -> None:
    """Raise where tables have failed, here or in a task ``before`` this one; the error names each with its cause.

    The task is tried again only where that may help one of its own. ``log``: why the log that they share could not
    be ended, which is named beside them.
    """
    causes = {**before, **{pair.table: failure_of(error) for pair, error in failed.items()}}
    if not causes:
        if log is not None:
            raise log
        return
    lines = [f"{table}: {cause}" for table, cause in sorted(causes.items())]
    more = [f"and {len(lines) - NAMED} more, which the log names"] if len(lines) > NAMED else []
    shared = [] if log is None else [f"the log that tables share: {failure_of(log)}"]
    sentence = "\n- ".join([f"{len(causes)} of {total} tables have failed:", *lines[:NAMED], *more, *shared])
    if all(isinstance(error, Terminal) for error in (*failed.values(), *([] if log is None else [log]))):
        raise AirflowFailException(sentence)
    raise TablesFailed(sentence)
