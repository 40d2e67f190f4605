"""What a table of files says of itself to the planner."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_backpressure.core.config import Consistency, Mode
from airflow_provider_backpressure.core.endpoints import NOWHERE
from airflow_provider_backpressure.core.planning.preconditions import check_replayable
from airflow_provider_backpressure.core.snapshot.plan import Snapshot
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, WriteSpec
from airflow_provider_backpressure.core.snapshot.topic_offsets import order_by_log
from airflow_provider_backpressure.exceptions import SinkRefused, SourceRefused
from airflow_provider_backpressure.sinks import DeltaSink, IcebergSink, ParquetSink

COLUMNS = (
    Column(name="partition", type="integer", nullable=False),
    Column(name="offset", type="bigint", nullable=False),
    Column(name="key", type="bytea"),
)


def fitted(declared: Any, mode: str) -> WriteSpec:
    spec: WriteSpec = declared.open(NOWHERE).fit(COLUMNS, mode=mode, key=("key",))
    return spec


@pytest.mark.statement("X5")
def test_those_that_merge_take_a_topic_and_no_database_s_log(tmp_path: Path) -> None:
    """X5: a frontier is kept by both; changes of a database's log are refused before anything is planned."""
    catalog = {"type": "hadoop", "warehouse": str(tmp_path / "warehouse")}
    log = Snapshot(
        source_identity="postgres://db/t",
        columns=COLUMNS,
        key=("key",),
        split=("key",),
        unique=True,
        frontier={},
        total=1,
        total_exact=True,
        row_bytes=8.0,
        consistency=Consistency.CATCH_UP,
        log_keys=(("key",),),
    )
    for declared in (DeltaSink(path=str(tmp_path / "delta")), IcebergSink(table="raw.t", catalog=catalog)):
        write = fitted(declared, "upsert")
        assert order_by_log(write).ordered
        with pytest.raises(SinkRefused, match="No log can be replayed into"):
            check_replayable(log, write, kind="postgres", mode=Mode.UPSERT, transformed=False)
        given = replace(write, kind="postgres")
        with pytest.raises(SourceRefused, match="key of the key may arrive as NULL, by which no row is found"):
            check_replayable(log, given, kind="postgres", mode=Mode.UPSERT, transformed=False)
        kept = replace(log, columns=tuple(replace(column, nullable=False) for column in log.columns))
        check_replayable(kept, given, kind="postgres", mode=Mode.UPSERT, transformed=False)


def test_a_log_is_not_ordered_by_offsets_that_are_text(tmp_path: Path) -> None:
    """As text 9 comes after 10."""
    write = fitted(DeltaSink(path=str(tmp_path / "delta")), "upsert")
    columns = tuple(replace(each, type="text") if each.name == "offset" else each for each in write.columns)
    with pytest.raises(SinkRefused, match="by its order, and offset is text: let the transform keep its type"):
        order_by_log(replace(write, columns=columns))


def test_parquet_takes_no_topic_by_its_order(tmp_path: Path) -> None:
    """It has nothing by which rows could be told."""
    with pytest.raises(SinkRefused, match="does not keep its order"):
        order_by_log(fitted(ParquetSink(path=str(tmp_path / "parquet")), "append"))
