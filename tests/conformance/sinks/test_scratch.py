"""A target beside another, which a probe fills: it goes without a trace, and nothing else does."""

import uuid
from contextlib import closing
from dataclasses import replace

import pytest

from airflow_provider_backpressure.exceptions import SinkRefused
from tests.conformance.sinks.cases import Case, opened
from tests.conformance.sinks.support import Begun, begin, ids

pytestmark = [pytest.mark.integration, pytest.mark.statement("T12")]

DIGITS = "0123abcd"


def test_a_scratch_target_goes_and_the_real_one_stays(case: Case) -> None:
    """With its plan and its markers; another plan's stays, and going twice is as good as once."""
    real = begin(case)
    with opened(case) as sink, closing(sink.scratch(DIGITS)) as scratch:
        write = scratch.fit(case.columns, mode="append", key=())
        scratch.prepare(write)
        plan = replace(real.plan, plan_id=uuid.uuid4().hex, sink_identity=scratch.identity, write=write)
        probe = Begun(case=case, plan=replace(plan, epoch=scratch.begin(plan)))
        probe.write(0)
        assert scratch.holds_rows()
        assert [marker.rows for marker in scratch.markers(plan.plan_id).values()] == [len(ids(0))]
        with pytest.raises(SinkRefused, match="it is not dropped"):
            scratch.drop("f" * 32)
        assert scratch.holds_rows()
        for _ in range(2):
            scratch.drop(plan.plan_id)
        assert case.rows() == []
        assert sink.epoch(real.plan.plan_id) == real.plan.epoch
    with opened(case) as sink, closing(sink.scratch(DIGITS)) as again:
        assert again.identity == scratch.identity
        assert not again.holds_rows()
        assert again.epoch(plan.plan_id) is None
    real.write(0)
    assert [row[0] for row in case.rows()] == ids(0)


def test_one_that_was_made_and_not_begun_goes_too(case: Case) -> None:
    """A probe may be killed in between."""
    begin(case)
    with opened(case) as sink, closing(sink.scratch(DIGITS)) as scratch:
        scratch.prepare(scratch.fit(case.columns, mode="append", key=()))
        scratch.drop(uuid.uuid4().hex)
        assert not scratch.holds_rows()


def test_the_real_target_is_never_dropped(case: Case) -> None:
    """Not even by the plan that holds it, where a kind of sink could."""
    real = begin(case)
    real.write(0)
    with opened(case) as sink:
        drop = getattr(sink, "drop", None)
        if drop is not None:
            with pytest.raises(SinkRefused, match="it is not dropped"):
                drop(real.plan.plan_id)
    assert [row[0] for row in case.rows()] == ids(0)
