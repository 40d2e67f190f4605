"""A table of files that was set back or made again may have all our marks, and not the rows: it is refused."""

import shutil
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_backpressure.core.snapshot.spark_messages import Window
from airflow_provider_backpressure.exceptions import SinkRefused, SourceRefused
from tests.conformance.sinks.cases import Case, DeltaCase, ParquetCase, opened
from tests.conformance.sinks.support import Begun, begin, expected
from tests.conformance.sinks.test_lakes import compact, only
from tests.conformance.sinks.test_landed import landed

pytestmark = [pytest.mark.integration, pytest.mark.statement("X1", "X3")]

LATER = Window(column="id", after="19", upto="29")


def filled(case: Case) -> Begun:
    """A plan of two ranges, both committed."""
    begun = begin(case, ranges=2)
    for seq in range(2):
        begun.write(seq)
    return begun


def check(case: Case) -> None:
    """Look at the table's history, as planning, verification and completion do."""
    with opened(case) as sink:
        sink.check_history()


def version(case: Any) -> int:
    """The table's version or snapshot as it is now."""
    if isinstance(case, DeltaCase):
        from deltalake import DeltaTable

        return DeltaTable(case.folder).version()
    return int(case.writable().current_snapshot().snapshot_id)


def set_back(case: Any, to: int) -> None:
    """Do what RESTORE, or a rollback, does."""
    if isinstance(case, DeltaCase):
        from deltalake import DeltaTable

        DeltaTable(case.folder).restore(to)
    else:
        case.writable().manage_snapshots().set_current_snapshot(to).commit()


def refused(case: Case, words: str) -> None:
    """No plan follows, nothing is read from it, and nothing ends; the way out is named."""
    with pytest.raises(SinkRefused, match=words):
        check(case)
    with pytest.raises(SinkRefused, match='"restart"'):
        begin(case, window=LATER)
    with pytest.raises(SourceRefused, match=words), landed(case) as source:
        source.snapshot()


@only("delta", "iceberg", "hadoop")
def test_a_table_that_was_set_back_is_refused(case: Case) -> None:
    """Its marks are all there, and the rows of the second range are not; set forward again it is whole."""
    begun = begin(case, ranges=2)
    begun.write(0)
    early = version(case)
    begun.write(1)
    late = version(case)
    set_back(case, early)
    assert (set(begun.markers()), case.rows()) == ({"0.0", "1.0"}, expected(case, 0))
    refused(case, "no longer holds what was committed")
    set_back(case, late)
    check(case)
    begin(case, window=LATER).write(2)
    assert case.rows() == expected(case, 0, 1, 2)
    set_back(case, early)
    refused(case, "no longer holds what was committed")


@only("delta", "iceberg", "hadoop")
def test_a_table_that_was_set_back_may_be_filled_anew(case: Case) -> None:
    """A plan that follows no other one begins with the table as it is."""
    begun = begin(case, mode="upsert")
    early = version(case)
    begun.write(0)
    set_back(case, early)
    anew = begin(case, mode="upsert", ranges=1)
    anew.write(0)
    check(case)
    assert case.rows() == expected(case, 0)


@only("iceberg", "hadoop")
def test_nothing_is_committed_after_a_rollback(case: Case) -> None:
    """Otherwise the new snapshot would descend from the right one again, with a hole behind it."""
    begun = begin(case)
    early = version(case)
    begun.write(0)
    set_back(case, early)
    with pytest.raises(SinkRefused, match="rolled back"):
        begun.write(1)


@only("delta", "iceberg", "hadoop")
def test_what_others_do_to_a_table_is_no_setback(case: Case) -> None:
    """Compaction and rows of others keep ours; so does a merge of our own."""
    filled(case)
    compact(case)
    case.add_foreign()
    check(case)
    begin(case, mode="upsert", window=LATER).write(1, word="new")
    check(case)


@only("delta")
def test_a_clean_log_is_no_setback(case: Any) -> None:
    """Entries before a checkpoint are deleted after a while."""
    from deltalake import DeltaTable

    filled(case)
    found = DeltaTable(case.folder)
    found.create_checkpoint()
    for entry in (case.folder / "_delta_log").glob("*.json"):
        if int(entry.stem) < found.version():
            entry.unlink()
    check(case)


@only("iceberg")
@pytest.mark.parametrize("back", [False, True])
def test_expired_snapshots_are_no_setback(case: Any, back: bool) -> None:
    """Only the current snapshot is left: it is younger than our last one, or it is an older one."""
    begun = begin(case)
    begun.write(0)
    early = version(case)
    begun.write(1)
    if back:
        set_back(case, early)
    else:
        case.add_foreign()
    found = case.writable()
    current = found.current_snapshot().snapshot_id
    old = [each.snapshot_id for each in found.snapshots() if each.snapshot_id != current]
    found.maintenance.expire_snapshots().by_ids(old).commit()
    if back:
        with pytest.raises(SinkRefused, match="rolled back"):
            check(case)
    else:
        check(case)


def replace_delta(case: Any) -> None:
    """CREATE OR REPLACE TABLE: transaction ids stay."""
    from deltalake import DeltaTable

    DeltaTable.create(str(case.folder), DeltaTable(case.folder).schema(), mode="overwrite")


def replace_iceberg(case: Any) -> None:
    """Another table of the name, with the properties of the first one."""
    from contextlib import closing

    from pyiceberg.catalog import load_catalog

    found = case.writable()
    with closing(load_catalog(**case.catalog)) as catalog:
        catalog.drop_table("raw.t")
        catalog.create_table("raw.t", found.schema(), properties=found.properties)


def remove(case: Any) -> None:
    """The folder, and all that is in it."""
    shutil.rmtree(case.folder)


def drop_iceberg(case: Any) -> None:
    """The table as its catalog has it."""
    from contextlib import closing

    from pyiceberg.catalog import load_catalog

    with closing(load_catalog(**case.catalog)) as catalog:
        catalog.drop_table("raw.t")


@pytest.mark.parametrize(
    ("case", "lose"),
    [
        ("delta", replace_delta),
        ("delta", remove),
        ("iceberg", replace_iceberg),
        ("iceberg", drop_iceberg),
        ("parquet", remove),
    ],
    indirect=["case"],
)
def test_a_table_that_was_dropped_or_made_anew_is_refused(case: Case, lose: Callable[[Any], None]) -> None:
    """It would be filled with nothing but what follows; a plan that follows no other one fills it."""
    filled(case)
    lose(case)
    with pytest.raises(SinkRefused, match="is not the table that earlier plans wrote"):
        check(case)
    with pytest.raises(SinkRefused, match="is not the table that earlier plans wrote"):
        begin(case, window=LATER)
    anew = begin(case, ranges=1)
    anew.write(0)
    check(case)
    assert case.rows() == expected(case, 0)


@only("parquet", "delta", "iceberg")
def test_a_note_of_an_earlier_release_stays_valid(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not say in which table its plan began."""
    from airflow_provider_backpressure.connectors.lake import markers as marks

    create = marks.Holder.create
    with monkeypatch.context() as old:
        old.setattr(marks.Holder, "create", classmethod(lambda cls, plan, epoch, **table: create(plan, epoch)))
        filled(case)
    check(case)
    begin(case, window=LATER).write(2)
    check(case)
    assert isinstance(case, ParquetCase) or case.rows() == expected(case, 0, 1, 2)
