"""Between two runs of a DAG its watcher looks after the hydration, in a real triggerer."""

from pathlib import Path

import pytest

from tests.system.installation import FINISHED, Installation, until

pytestmark = [pytest.mark.system, pytest.mark.long]

MESSAGES = 80
"""Of a megabyte each: more than the signal's 64 MiB."""


@pytest.mark.statement("T7")
def test_a_log_that_grows_while_no_run_is_under_way_is_told(installation: Installation):
    """The hydration is paused, so no run comes that would replay the log and let it go: the callback hears of it."""
    airflow, ledger = installation.airflow, installation.ledger
    run = installation.run("looked_after")
    assert run.ends() == "success", run.states()
    found = installation.hydration("raw.looked_after")
    assert found is not None
    ledger.pause(found.id, who="ada", why="release night")
    # A watcher begins when the file is parsed once more after its DAG was unpaused.
    airflow.parse("looked_after")
    heard = installation.events.with_name("between.txt")
    with installation.open("shop") as link:
        for _ in range(MESSAGES):
            link.execute("SELECT pg_logical_emit_message(false, 'test', repeat('x', 1000000))")
    told = until(lambda: heard.exists() and [line for line in lines(heard) if line.startswith("data_at_risk")], 300)
    assert len(told) == 1
    assert "/raw.looked_after: source slot lag " in told[0]
    assert told[0].endswith(") >= 64.0 MiB")
    assert installation.runs("looked_after") == 1, "it was told between two runs"

    ledger.resume(found.id, who="ada")
    # Nothing more of a run is scheduled once its DAG is paused, and what a run brings may bring the next.
    until(lambda: installation.runs("looked_after") > 1, 300)
    until(lambda: at_rest(installation), 900)
    forgotten = installation.cli("forget", "raw.looked_after")
    assert forgotten.returncode == 0, forgotten.stderr


def at_rest(installation: Installation) -> bool:
    """Pause the DAG if all its runs are over; whether that was in time."""
    if not over(installation):
        return False
    installation.airflow.pause("looked_after")
    if over(installation):
        return True
    installation.airflow.pause("looked_after", paused=False)
    return False


def over(installation: Installation) -> bool:
    """Whether every run has ended, and nobody holds the hydration."""
    states = {run["state"] for run in installation.dag_runs("looked_after")}
    return states <= set(FINISHED) and installation.hydration("raw.looked_after").holder is None


def lines(path: Path) -> list[str]:
    """Return the lines that were written whole."""
    *whole, _ = path.read_text().split("\n")
    return whole
