"""Commits of Iceberg whose answer is lost or a refusal: what landed stays readable, and what did not leaves no file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException

from airflow_provider_backpressure.connectors.lake.iceberg.hadoop_catalog import HadoopCatalog
from airflow_provider_backpressure.exceptions import SinkRefused
from tests.conformance.sinks.cases import HadoopCase, IcebergCase, opened
from tests.conformance.sinks.support import batches, begin, bounds, expected
from tests.conformance.sinks.test_lakes import between, root

pytestmark = [pytest.mark.integration, pytest.mark.parametrize("case", ["hadoop", "iceberg"], indirect=True)]


def lose_answers(case: IcebergCase, monkeypatch: pytest.MonkeyPatch, then: Callable[[], Any] = lambda: None) -> None:
    """Let each commit land and be refused, as where a transport sends a call again after it lost the answer."""
    catalog = HadoopCatalog if isinstance(case, HadoopCase) else SqlCatalog
    real: Any = catalog.commit_table

    def lose(self: Any, *args: Any) -> None:
        real(self, *args)
        with monkeypatch.context() as others:
            others.setattr(catalog, "commit_table", real)
            then()
        raise CommitFailedException("ConcurrentModificationException")

    monkeypatch.setattr(catalog, "commit_table", lose)


@pytest.mark.statement("X1")
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_commit_whose_answer_was_lost_keeps_the_table(
    case: IcebergCase, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """X1: the plan and each range count once, all rows can be read, and later commits build on them."""
    with monkeypatch.context() as patched:
        lose_answers(case, patched)
        begun = begin(case, mode=mode)
        begun.write(0)
        begun.write(1)
    assert begun.plan.epoch == 1
    assert case.rows() == expected(case, 0, 1)
    begun.write(2)
    assert case.rows() == expected(case, 0, 1, 2)
    assert set(begun.markers()) == {"0.0", "1.0", "2.0"}


@pytest.mark.statement("X1")
def test_a_lost_answer_is_noticed_behind_commits_of_others(case: IcebergCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: another range builds on the snapshot before the refusal arrives."""
    begun = begin(case)
    with monkeypatch.context() as patched:
        lose_answers(case, patched, lambda: begun.write(1))
        begun.write(0)
    assert case.rows() == expected(case, 0, 1)


@pytest.mark.statement("X1")
def test_manifests_stay_where_the_landed_snapshot_has_expired(
    case: IcebergCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X1: the snapshot is no longer in the metadata, but later ones name its manifests."""
    begun = begin(case)
    begun.write(2)

    def expire() -> None:
        begun.write(1)
        table = case.writable()
        older = [each.snapshot_id for each in table.metadata.snapshots[:-1]]
        table.maintenance.expire_snapshots().by_ids(older).commit()

    with monkeypatch.context() as patched:
        lose_answers(case, patched, expire)
        begun.write(0)
    assert case.rows() == expected(case, 0, 1, 2)
    assert set(begun.markers()) == {"0.0", "1.0", "2.0"}


@pytest.mark.statement("X3")
def test_a_repair_whose_answer_was_lost_has_happened(case: IcebergCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """X3: the range's rows are gone, and the sink says so."""
    begun = begin(case)
    begun.write(0)
    begun.write(1)
    with opened(case) as sink, monkeypatch.context() as patched:
        lose_answers(case, patched)
        assert sink.discard(begun.plan, "0.0", bounds(0)) == len(expected(case, 0))
    assert case.rows() == expected(case, 1)


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_commit_that_was_overtaken_leaves_no_manifest(
    case: IcebergCase, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """What is certain never to be named by the table is deleted, so that contention fills no bucket."""
    begun = begin(case, mode=mode)
    between(monkeypatch, lambda: begun.write(1))
    case.write(begun.spec(0), batches(case, [1, 2]))
    table = case.table()
    named = {Path(each.manifest_list).name for each in table.metadata.snapshots}
    named |= {
        Path(manifest.manifest_path).name for each in table.metadata.snapshots for manifest in each.manifests(table.io)
    }
    assert {path.name for path in root(case).rglob("*.avro")} == named


@pytest.mark.statement("X1")
def test_a_table_that_was_upgraded_to_a_newer_format_is_refused(case: IcebergCase) -> None:
    """X1: pyiceberg does not write it. Between two ranges, and by the next plan."""
    begun = begin(case)
    begun.write(0)
    # As Spark does it; pyiceberg writes no such metadata.
    place = Path(case.writable().metadata_location.removeprefix("file://"))
    place.write_text(json.dumps({**json.loads(place.read_text()), "format-version": 3, "next-row-id": 0}))
    with pytest.raises(SinkRefused, match=r"t has format version 3, and 2 is the newest that IcebergSink writes"):
        begun.write(1)
    assert case.rows() == expected(case, 0)
    with pytest.raises(SinkRefused, match="has format version 3"), opened(case) as sink:
        sink.fit(case.columns, mode="append", key=("id",))
