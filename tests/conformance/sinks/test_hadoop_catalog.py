"""Iceberg's Hadoop catalog on a local disk: what its commits are safe against, and where they would not be."""

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException

from airflow_provider_backpressure.connectors.lake.iceberg import hadoop_catalog as iceberg_hadoop
from airflow_provider_backpressure.connectors.lake.iceberg.catalog_properties import to_pyiceberg_properties
from airflow_provider_backpressure.core.endpoints import NOWHERE
from airflow_provider_backpressure.exceptions import InvalidDeclaration, SinkRefused
from airflow_provider_backpressure.sinks import IcebergSink
from tests.conformance.sinks.cases import HadoopCase, opened
from tests.conformance.sinks.support import begin, expected

pytestmark = [pytest.mark.integration, pytest.mark.parametrize("case", ["hadoop"], indirect=True)]


def metadata(case: HadoopCase) -> Path:
    """The folder of the table's versions."""
    return Path(case.catalog["warehouse"].removeprefix("file://")) / "raw" / "t" / "metadata"


def versions(case: HadoopCase) -> list[int]:
    """The versions that are there."""
    return sorted(int(path.name[1:].partition(".")[0]) for path in metadata(case).glob("v*.metadata.json"))


@pytest.mark.statement("X1")
def test_what_counts_is_the_highest_number(case: HadoopCase) -> None:
    """X1: a writer that died before it wrote the hint has committed all the same."""
    begun = begin(case)
    begun.write(0)
    last = versions(case)[-1]
    assert (metadata(case) / iceberg_hadoop.HINT).read_text() == str(last)
    (metadata(case) / iceberg_hadoop.HINT).write_text(str(last - 1))
    (metadata(case) / f".{iceberg_hadoop.HINT}.crc").write_text("a checksum of Hadoop's")
    assert set(begun.markers()) == {"0.0"}
    begun.write(1)
    assert case.rows() == expected(case, 0, 1)
    assert not [path for path in metadata(case).iterdir() if path.name.startswith(".")]


@pytest.mark.statement("X1")
def test_a_number_that_is_free_again_is_not_taken(case: HadoopCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: a writer slept so long that the versions it knew were cleaned away: its commit is none."""
    begun = begin(case)
    with opened(case):
        sleeper = load_catalog(**to_pyiceberg_properties(case.catalog)).load_table("raw.t")
    for seq in range(22):
        begun.write(seq)
    there = versions(case)
    assert there[0] > 3
    latest = iceberg_hadoop._latest
    monkeypatch.setattr(iceberg_hadoop, "_latest", lambda _: 2)
    sleeper.metadata.properties["commit.retry.num-retries"] = "0"
    (metadata(case) / "v2.metadata.json").write_text(sleeper.metadata.model_dump_json())
    real = iceberg_hadoop.HadoopCatalog._take

    def late(folder: Path, number: int, found: Any) -> bool:
        taken = real(folder, number, found)
        (metadata(case) / "v2.metadata.json").unlink()
        monkeypatch.setattr(iceberg_hadoop, "_latest", latest)
        return taken

    monkeypatch.setattr(iceberg_hadoop.HadoopCatalog, "_take", staticmethod(late))
    transaction = sleeper.transaction().set_properties({"a": "b"})
    with transaction.update_snapshot().fast_append():
        pass
    with pytest.raises(CommitFailedException, match="long overtaken"):
        transaction.commit_transaction()
    monkeypatch.undo()
    assert versions(case) == there
    assert case.rows() == expected(case, *range(22))


@pytest.mark.statement("X1")
@pytest.mark.parametrize("others", [19, 20, 21, 22])
def test_a_task_that_froze_behind_its_link_knows_its_commit(
    case: HadoopCase, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """X1: so many others commit on top that the version before this one, or both, are cleaned away."""
    begun = begin(case)
    begun.write(0)
    real = iceberg_hadoop.HadoopCatalog._take

    def freeze(*args: Any) -> bool:
        taken = real(*args)
        monkeypatch.setattr(iceberg_hadoop.HadoopCatalog, "_take", staticmethod(real))
        for number in range(others):
            with case.writable().transaction() as transaction:
                transaction.set_properties({"of": str(number)})
        return taken

    monkeypatch.setattr(iceberg_hadoop.HadoopCatalog, "_take", staticmethod(freeze))
    begun.write(1)
    assert set(begun.markers()) == {"0.0", "1.0"}
    assert case.rows() == expected(case, 0, 1)
    earlier = [Path(each.metadata_file.removeprefix("file://")) for each in case.writable().metadata.metadata_log]
    assert [path.name for path in earlier if not path.exists()] == []
    begun.write(2)
    assert case.rows() == expected(case, 0, 1, 2)


def test_packed_metadata_is_refused(case: HadoopCase) -> None:
    """Another writer's setting: a number could be taken twice, once packed."""
    begin(case)
    last = versions(case)[-1]
    (metadata(case) / f"v{last}.metadata.json").rename(metadata(case) / f"v{last}.gz.metadata.json")
    with pytest.raises(SinkRefused, match="compressed metadata"):
        begin(case)


@pytest.mark.parametrize("warehouse", ["s3://bucket/warehouse", "hdfs://name/warehouse", "relative/folder", ""])
def test_a_warehouse_elsewhere_is_refused(case: HadoopCase, warehouse: str) -> None:
    """X5: in one sentence, when it is declared."""
    sink = IcebergSink(table="raw.t", catalog={"name": "lake", "type": "hadoop", "warehouse": warehouse})
    with pytest.raises(InvalidDeclaration, match="needs a warehouse that is a local folder"):
        sink.open(NOWHERE)
