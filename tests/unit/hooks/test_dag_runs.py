"""What of Airflow's states of a run counts."""

import pytest
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_provider_backpressure.hooks.backpressure import is_running, under_way


@pytest.mark.parametrize(
    ("state", "found"),
    [("queued", (True, False)), ("running", (True, True)), ("failed", (False, False)), ("success", (False, False))],
)
def test_a_queued_run_is_under_way_and_does_not_run(
    state: str, found: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cleared run waits for the one that runs, where a DAG has one at a time: that one must not wait for it."""

    def count(*, dag_id: str, run_ids: list[str], states: list[str]) -> int:
        return int((dag_id, run_ids, state in states) == ("dag", ["run"], True))

    monkeypatch.setattr(RuntimeTaskInstance, "get_dr_count", count)
    assert (under_way("dag", "run"), is_running("dag", "run")) == found
