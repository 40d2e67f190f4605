"""What a task does with its session before it moves rows."""

from unittest.mock import Mock

import pytest

from airflow_provider_backpressure.exceptions import SinkRefused
from airflow_provider_backpressure.hooks.hydration_session import HydrationSession


@pytest.mark.parametrize("epoch", [0, 3])
def test_a_lane_takes_only_the_table_that_its_plan_holds(epoch: int) -> None:
    """A target that was created again after the plan began would get the rest of the ranges alone."""
    session, hydration, plan = Mock(), Mock(), Mock(epoch=epoch)
    session.hydration.return_value = (hydration, plan)
    session.sink.check_history.side_effect = SinkRefused("it was created again")
    if epoch:
        with pytest.raises(SinkRefused, match="created again"):
            HydrationSession.take_target(session)
        session.planner().take_target.assert_not_called()
        return
    HydrationSession.take_target(session)
    session.planner().take_target.assert_called_once_with(hydration, plan)
