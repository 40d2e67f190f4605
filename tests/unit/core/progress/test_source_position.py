"""Frontiers of sources: how servers write them, and what they count."""

import pytest

from airflow_provider_backpressure.core.progress.source_position import (
    Unit,
    Upstream,
    from_gtids,
    from_lsn,
    from_position,
)
from airflow_provider_backpressure.exceptions import InvalidDeclaration

A, B = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "3e11fa47-71ca-11e1-9e33-c80aa9429563"


@pytest.mark.statement("M8")
def test_an_lsn_counts_bytes():
    """M8: pg_current_wal_lsn() in bytes from the log's beginning."""
    assert from_lsn("0/0") == {"wal": 0}
    assert from_lsn("16/B374D848") == {"wal": 0x16B374D848}
    with pytest.raises(InvalidDeclaration, match="no place in PostgreSQL's log"):
        from_lsn("nowhere")


@pytest.mark.statement("M8")
def test_gtids_count_transactions_by_their_source():
    """M8: @@gtid_executed with gaps, several servers and tags; MariaDB's own positions by domain."""
    assert from_gtids("") == {}
    assert from_gtids(f"{A}:1-5") == {A: 5}
    assert from_gtids(f"{A}:1-5:7:9-10,\n{B}:1") == {A: 8, B: 1}
    assert from_gtids(f"{A}:1-3:audit:1-2:7") == {A: 3, f"{A}:audit": 3}
    assert from_gtids("0-1-100,2-7-9") == {"0": 100, "2": 9}
    with pytest.raises(InvalidDeclaration, match="no set of GTIDs"):
        from_gtids(f"{A}:1-x")


def test_a_plans_position_is_read_by_the_kind_of_its_source():
    assert from_position("postgres", "0/10") == {"wal": 16}
    assert from_position("mysql", f"{A}:1-2") == {A: 2}
    assert from_position("memory", "7") is None


def test_json_keeps_a_frontier():
    upstream = Upstream(unit=Unit.OFFSETS, at={0: 7, 1: 2**63}, open=3)
    assert Upstream.from_json(upstream.to_json()) == Upstream(unit=Unit.OFFSETS, at={"0": 7, "1": 2**63}, open=3)
