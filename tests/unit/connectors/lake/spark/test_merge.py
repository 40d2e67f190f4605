"""The statement of a merge, and what gives its commit a note."""

import json
from unittest.mock import MagicMock

import grpc
import pytest
from pyspark.sql.catalog import CatalogMetadata
from pyspark.sql.connect.client import SparkConnectClient

from airflow_provider_backpressure.connectors.lake.markers import Attempt, Mark
from airflow_provider_backpressure.connectors.lake.spark.commit_notes import note_of_mark
from airflow_provider_backpressure.connectors.lake.spark.connect_or_classic_session import clone_session, disable_cache
from airflow_provider_backpressure.connectors.lake.spark.delta import DeltaTable
from airflow_provider_backpressure.connectors.lake.spark.iceberg import IcebergTable
from airflow_provider_backpressure.connectors.lake.spark.table import build_merge
from airflow_provider_backpressure.exceptions import SinkRefused


def test_a_merge_updates_the_key_too() -> None:
    """So that rows of nothing but a key make a commit, which carries the mark."""
    assert build_merge("`c`.`s`.`t`", "v", ["a.b", "id"], ["id"]) == (
        "MERGE INTO `c`.`s`.`t` AS t USING `v` AS s ON t.`id` = s.`id` "
        "WHEN MATCHED THEN UPDATE SET t.`a.b` = s.`a.b`, t.`id` = s.`id` "
        "WHEN NOT MATCHED THEN INSERT (`a.b`, `id`) VALUES (s.`a.b`, s.`id`)"
    )


@pytest.mark.parametrize("table", [DeltaTable, IcebergTable])
def test_the_settings_of_a_commit_have_its_token_and_its_note(table: type[DeltaTable | IcebergTable]) -> None:
    """They are all that a MERGE can be told by."""
    attempt = Attempt(plan_id="p", epoch=3, slice_id="1.0", attempt=2, bounds={})
    note = note_of_mark(Mark.made(attempt, rows=10, bytes=1, checksum="c", files=()))
    values = list(table(MagicMock(), "c.s.t").note_settings(note).values())
    assert values[0] == "backpressure:p:1.0:3"
    assert json.loads(values[-1])["backpressure"]["token"] == "backpressure:p:1.0:3"


class Unimplemented(grpc.RpcError, grpc.Call):
    """What a server of before 4.1 answers where a session is to be copied."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNIMPLEMENTED


def test_a_spark_without_copies_of_sessions_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other try would end otherwise."""
    session = MagicMock(version="4.0.5")
    session.client.clone.side_effect = Unimplemented
    with pytest.raises(SinkRefused, match=r"since 4.1, but the server runs Spark 4.0.5"), clone_session(session):
        pass
    monkeypatch.delattr(SparkConnectClient, "clone")
    with (
        pytest.raises(SinkRefused, match=r"since 4.1, but the client in Airflow is PySpark \d"),
        clone_session(session),
    ):
        pass


@pytest.mark.statement("K3")
def test_a_session_that_has_used_a_catalog_may_have_cached_its_tables() -> None:
    """K3: then it takes no other setting, and is told to forget a table before each look; otherwise it never is."""
    fresh, used = MagicMock(), MagicMock()
    used.catalog.listCatalogs.return_value = [CatalogMetadata(name="lake", description=None)]
    tables = [IcebergTable(session, "lake.raw.t") for session in (fresh, fresh, used, used)]
    fresh.catalog.listCatalogs.return_value = used.catalog.listCatalogs.return_value
    assert not disable_cache(fresh, "lake"), "it is in use since it was told"
    fresh.conf.set.assert_called_once_with("spark.sql.catalog.lake.cache-enabled", "false")
    for table in tables:
        table.refresh()
    assert fresh.sql.call_count == 0
    assert [call.args for call in used.sql.call_args_list] == [("REFRESH TABLE `lake`.`raw`.`t`",)] * 2
