"""``verify="full"`` under ``snapshot``: the lane reads the source again in the snapshot that it keeps."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_backpressure.core.config import Budget, Refresh
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.spark_messages import FRAME, ChecksumSpec
from airflow_provider_backpressure.core.verification.completeness_check import Completion
from airflow_provider_backpressure.core.verification.verifier import Verify
from airflow_provider_backpressure.exceptions import InvalidDeclaration, PlanOutdated, SnapshotLost, VerificationFailed
from tests.integration.test_surviving_snapshot import RANGES, ROWS, churning, end_keeper, opened
from tests.support.composed import Composed, Ports, compare_with_snapshot, difference
from tests.support.marks import mark_long
from tests.support.postgres import run

pytestmark = [pytest.mark.integration, pytest.mark.statement("X3")]

TYPES = "id int PRIMARY KEY, v int, pad text"
TARGETS = {"keyed": TYPES, "keyless": "id int, v int, pad text"}
"""How the target's table is made: as its source, and without a key by which ranges can be found."""


@pytest.fixture
def composed(database: Endpoint, ledger_url: str) -> Composed:
    """3,000 rows of ``public.t`` in 30 ranges of one snapshot; the target is for the test to make."""
    run(
        database,
        f"CREATE TABLE t ({TYPES})",
        f"INSERT INTO t SELECT g, 0, repeat('p', 50) FROM generate_series(1, {ROWS}) g",
        "ANALYZE t",
        "CREATE SCHEMA raw",
    )
    return Composed(
        source=database,
        sink=database,
        ledger_url=ledger_url,
        remote="",
        consistency="snapshot",
        budget=Budget(credits=2, range_rows=ROWS // RANGES),
        reads_again=True,
    )


def finish(ports: Ports) -> None:
    """End the hydration as its last task does under ``verify="full"``."""
    plan = ports.plan
    Completion(plan=plan, ledger=ports.ledger, sink=ports.sink).check()
    ports.sink.complete(plan)
    report = ports.verifier().verify(ports.ledger.ranges(plan.plan_id), Verify.FULL)
    assert report.equal, report.mismatches
    ports.sink.publish(plan)
    ports.ledger.finish(ports.hydration.id)


@contextmanager
def noting(ports: Ports, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ChecksumSpec]]:
    """Note every piece of the source that is hashed meanwhile."""
    specs: list[ChecksumSpec] = []
    checksum = ports.runner.checksum

    def noted(spec: ChecksumSpec) -> Any:
        if spec.conn_id == "source":
            specs.append(spec)
        return checksum(spec)

    with monkeypatch.context() as patch:
        patch.setattr(ports.runner, "checksum", noted)
        yield specs


@pytest.mark.parametrize(
    ("mode", "target"),
    mark_long(
        [
            *((mode, "keyed") for mode in ("append", "replace", "upsert", "mirror")),
            ("append", "keyless"),
        ],
        quick=[("mirror", "keyed")],
    ),
)
def test_a_table_that_changes_all_the_time_is_compared_in_full(
    composed: Composed, mode: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X3: every range is read twice in one snapshot, whatever the writer does; a mirror also in its second run."""
    run(composed.sink, f"CREATE TABLE raw.t ({TARGETS[target]})")
    composed = replace(composed, mode=mode)
    with churning(composed.source), opened(composed, monkeypatch) as ports:
        for number in range(2 if mode == "mirror" else 1):
            replace(ports.planner(), run=f"run {number}", refresh=Refresh.EACH_RUN if number else Refresh.ONCE).plan()
            with noting(ports, monkeypatch) as specs:
                ports.hydrator().run()
            again = {(spec.read or spec).snapshot for spec in specs}
            assert len(again) == 1, f"run {number}"
            assert None not in again
            assert len(specs) == len(ports.ledger.ranges(ports.plan.plan_id))
            finish(ports)
        assert difference(composed.source, "public.t", composed.sink, "raw.t") != (0, 0), "it has changed meanwhile"
    assert compare_with_snapshot(composed) == (0, 0)


def test_a_table_of_files_is_compared_with_its_source_in_full(
    composed: Composed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X3: rows that are decoded on their way are decoded again, in the same snapshot."""
    composed = replace(composed, into={"kind": "parquet", "path": str(tmp_path / "t")})
    with churning(composed.source), opened(composed, monkeypatch) as ports:
        assert ports.planner().plan().plan.path == FRAME
        with noting(ports, monkeypatch) as specs:
            ports.hydrator().run()
        assert len({spec.read.snapshot for spec in specs if spec.read}) == 1
        assert len(specs) == len(ports.ledger.ranges(ports.plan.plan_id))
        finish(ports)


def lose_row(ports: Ports) -> None:
    """Take a row of range 3 out of the target and out of the marker, as a task would that had read one too few."""
    plan = ports.plan
    (record,) = [each for each in ports.ledger.ranges(plan.plan_id) if each.seq == 3]
    query = ports.sink.slice_query(plan.write, record.bounds)
    run(ports.composed.sink, "DELETE FROM raw.t WHERE id = (SELECT min(id) FROM raw.t WHERE id BETWEEN 310 AND 390)")
    spec = ChecksumSpec(kind=plan.write.kind, conn_id=plan.write.conn_id, query=query)
    left = ports.runner.checksum(spec).result(60)
    run(
        ports.composed.sink,
        f"UPDATE raw.backpressure_commit SET rows = {left.rows}, checksum = '{left.checksum}'"
        f" WHERE plan_id = '{plan.plan_id}' AND slice_id = '{record.slice_id}'",
    )


@pytest.mark.parametrize("mode", mark_long(["append", "mirror"], quick=["append"]))
def test_a_row_that_was_lost_on_its_way_is_found(
    composed: Composed, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X3: target and marker agree, so that only the source can say so. The range is named, and read once more."""
    run(composed.sink, f"CREATE TABLE raw.t ({TYPES})")
    composed = replace(composed, mode=mode)
    with churning(composed.source), opened(composed, monkeypatch) as ports:
        ports.planner().plan()
        lane, commits = ports.hydrator(), iter(range(1, RANGES * 2))
        lane.on_commit = lambda: (
            lose_row(ports) if next(commits) == len(ports.ledger.ranges(ports.plan.plan_id)) else None
        )
        with pytest.raises(VerificationFailed, match=r"1 of \d+ ranges .* differ from what was committed.*: 3\. Clear"):
            lane.run()
        records = ports.ledger.ranges(ports.plan.plan_id)
        assert ports.verifier().verify(records, Verify.TARGET).equal
        with pytest.raises(InvalidDeclaration, match="was not read again"):
            ports.verifier().verify(records, Verify.FULL)
        ports.hydrator().run()
        finish(ports)
    assert compare_with_snapshot(composed) == (0, 0)


@pytest.mark.parametrize("mode", mark_long(["append", "upsert"], quick=["upsert"]))
def test_a_snapshot_that_is_lost_while_it_is_compared_is_followed_by_another_one(
    composed: Composed, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X3: ranges of two moments are never compared; the next lane brings all to one moment, and compares that."""
    run(composed.sink, f"CREATE TABLE raw.t ({TYPES})")
    composed = replace(composed, mode=mode)
    with churning(composed.source), opened(composed, monkeypatch) as ports:
        first = ports.planner().plan().plan
        checksum, count = ports.runner.checksum, iter(range(1, RANGES * 4))

        def losing(spec: ChecksumSpec) -> Any:
            if next(count) == RANGES // 2:
                end_keeper(composed.source)
            return checksum(spec)

        with monkeypatch.context() as patch:
            patch.setattr(ports.runner, "checksum", losing)
            with pytest.raises(SnapshotLost) as lost:
                ports.hydrator().run()
        assert not isinstance(lost.value, PlanOutdated)
        assert ports.ledger.counts(first.plan_id).open == 0
        with pytest.raises(InvalidDeclaration, match="was not read again"):
            ports.verifier().verify(ports.ledger.ranges(first.plan_id), Verify.FULL)
        ports.hydrator().run()
        assert (ports.plan.plan_id, ports.plan.epoch > first.epoch) == (first.plan_id, True)
        finish(ports)
    assert compare_with_snapshot(composed) == (0, 0)
