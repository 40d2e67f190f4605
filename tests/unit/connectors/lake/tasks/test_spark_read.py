"""How a session is set for what Spark's own connector reads, without a server."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from pyspark.sql import types as spark

from airflow_provider_backpressure.connectors.lake.tasks.spark_read import read_frame
from airflow_provider_backpressure.core.endpoints import NOWHERE
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, ReadSpec, Slice, Transform
from airflow_provider_backpressure.exceptions import RunnerRefused, SourceRefused
from airflow_provider_backpressure.spark import frame_path

pytestmark = pytest.mark.statement("K5")

PIECES = [Slice(slice_id="0.0", query="SELECT `id` AS `id` FROM t", bounds={})]


class FakeSession:
    """Has a table with one column, and keeps what it is asked."""

    def __init__(self, id_: str) -> None:
        self.settings: dict[str, str] = {}
        self.conf = Mock(set=self.settings.__setitem__)
        self.queries: list[str] = []
        self.id = id_

    def sql(self, query: str) -> Any:
        self.queries.append(query)
        schema = spark.StructType().add("id", "long")
        return Mock(schema=schema, collect=lambda: [{"id": self.id}])


def make_read(*parts: str) -> ReadSpec:
    """Return what reads that column."""
    return ReadSpec(kind="spark_catalog", conn_id="s", columns=(Column(name="id", type="bigint"),), parts=parts)


@pytest.mark.parametrize(("keeps_zone", "zone"), [(False, "UTC"), (True, None)])
def test_rows_are_read_by_the_zone_in_which_they_were_counted(keeps_zone: bool, zone: str | None) -> None:
    """A condition such as ``at < '2024-01-01'`` goes by it; and a file that is gone is no table without its rows."""
    session: Any = FakeSession("")
    read_frame(session, make_read(), PIECES, keeps_zone=keeps_zone)
    assert session.settings.pop("spark.sql.session.timeZone", None) == zone
    assert session.settings == {
        "spark.sql.files.ignoreMissingFiles": "false",
        "spark.sql.files.ignoreCorruptFiles": "false",
    }
    assert session.queries == [PIECES[0].query]


@pytest.mark.parametrize("transform", [None, Mock()])
def test_the_zone_of_a_transform_stays(transform: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ranges share a session, in which a function may have set another one."""
    asked = Mock()
    monkeypatch.setattr(frame_path, "task_module", lambda kind, name: asked)
    frame_path._source(Mock(), make_read(), PIECES, NOWHERE, Mock(transform=transform))
    assert asked.read_frame.call_args.kwargs == {"keeps_zone": transform is not None}


def test_a_table_that_was_made_anew_is_not_read() -> None:
    """It may have a version of the same number, with other rows."""
    read = make_read("3@first", "`t`")
    session: Any = FakeSession("first")
    read_frame(session, read, PIECES)
    assert session.queries == ["REFRESH TABLE `t`", PIECES[0].query, "DESCRIBE DETAIL `t`"]
    with pytest.raises(SourceRefused, match="another table by now"):
        read_frame(FakeSession("second"), read, PIECES)  # type: ignore[arg-type]
    iceberg: Any = FakeSession("")
    read_frame(iceberg, make_read("77", "`t`"), PIECES)
    assert iceberg.queries == ["REFRESH TABLE `t`", PIECES[0].query]


@pytest.mark.parametrize(("zone", "refused"), [("UTC", False), ("America/New_York", True)])
def test_a_transform_may_not_move_the_condition_of_a_table(
    zone: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark reads ``at < '2024-01-02'`` in the job, by the zone that the transform has left, and the plan in UTC."""
    session: Any = FakeSession("")
    session.conf.get = lambda name: zone
    frame, transform = Mock(), Transform(python="of:a_module")
    monkeypatch.setattr(frame_path, "apply_transform", lambda *_: frame)
    with pytest.raises(RunnerRefused, match=r"America/New_York.*UTC") if refused else nullcontext():
        assert frame_path._transform(session, make_read(), Mock(), transform, None) is frame
    other = replace(make_read(), kind="postgres")
    assert frame_path._transform(session, other, Mock(), transform, None) is frame
