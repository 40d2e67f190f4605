"""Keys by which later runs could bring a second row instead of another version of the first."""

from dataclasses import replace

import pytest

from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.planning.preconditions import check_key, check_same_key
from airflow_provider_backpressure.core.snapshot.plan import Plan, Snapshot
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, Window, WriteSpec
from airflow_provider_backpressure.exceptions import InvalidDeclaration, SinkRefused, SourceRefused
from tests.conformance.ledger.support import make_plan


def check(
    type_: str,
    kind: str,
    *,
    loose: bool = False,
    consistency: Consistency = Consistency.STATIC,
    increments: bool = True,
    there: str = "text",
    definition: str | None = None,
    arriving: str | None = None,
    versions: tuple[str, ...] = (),
    rising: str = "bigint",
    collation: str | None = None,
) -> None:
    last = Column(name="other", type=rising, collation=collation)
    columns = (Column(name="k", type=type_, definition=definition), last)
    snapshot = Snapshot(
        source_identity="s",
        columns=columns,
        key=("k",),
        split=(),
        unique=True,
        frontier={},
        total=None,
        total_exact=False,
        row_bytes=1.0,
        consistency=consistency,
        loose=("k",) if loose else (),
        versions=versions,
        window=Window(column="other", after=None, upto="9"),
    )
    write = WriteSpec(
        kind=kind,
        conn_id="c",
        target="raw.t",
        columns=(Column(name="k", type=there),),
        mode="upsert",
        key=("k",),
        plan_table="",
        commit_table="",
        fence="raw.t",
    )
    arrives = columns if arriving is None else (Column(name="k", type=arriving),)
    check_key(snapshot, arrives, write, increments=increments)


def test_a_key_whose_texts_are_equal_to_the_source_is_refused() -> None:
    """Under catch_up the log says which row went; where nothing is brought later, nothing comes beside it."""
    for kind in ("postgres", "delta"):
        with pytest.raises(SinkRefused, match=r"raw\.t cannot be upserted by k [^\n]*different texts for one key"):
            check("character varying(9)", kind, loose=True)
    check("text", "postgres", loose=True, consistency=Consistency.CATCH_UP)
    check("text", "postgres", loose=True, increments=False)
    check("public.citext", "postgres", loose=True, there="public.citext")
    check("text", "postgres")


@pytest.mark.parametrize(
    ("type_", "consistency", "refused"),
    [
        ("numeric", Consistency.STATIC, True),
        ("numeric(40,2)", Consistency.STATIC, False),
        ("uuid", Consistency.STATIC, False),
        ("uuid", Consistency.OFFSETS, True),
        ("numeric", Consistency.OFFSETS, True),
        ("numeric(40,2)", Consistency.OFFSETS, True),
        ("numeric(12,2)", Consistency.OFFSETS, False),
        ("time without time zone", Consistency.OFFSETS, True),
        ("timestamp with time zone", Consistency.OFFSETS, False),
        ("bigint", Consistency.OFFSETS, False),
        ("text", Consistency.OFFSETS, False),
        ("numrange", Consistency.STATIC, True),
        ("tstzrange", Consistency.STATIC, False),
        ("numeric[]", Consistency.STATIC, True),
        ("timestamp(3) without time zone[]", Consistency.STATIC, False),
        ("double precision", Consistency.STATIC, True),
        ("public.hstore", Consistency.STATIC, True),
        ("int4range", Consistency.OFFSETS, True),
        ("integer[]", Consistency.OFFSETS, True),
        ("citext", Consistency.OFFSETS, True),
    ],
)
def test_a_key_that_files_keep_as_text_is_refused_where_a_value_has_several(
    type_: str, consistency: Consistency, refused: bool
) -> None:
    """PostgreSQL compares values."""
    check(type_, "postgres", consistency=consistency)
    if not refused:
        check(type_, "iceberg", consistency=consistency)
        return
    with pytest.raises(
        SinkRefused, match=r"equal values of the type [^\n]* may differ in files[^\n]*Upsert by another key"
    ):
        check(type_, "iceberg", consistency=consistency)


@pytest.mark.parametrize(
    ("definition", "refused"),
    [
        ("domain of numeric", True),
        ("domain of public.inner (domain of numeric)", True),
        ("domain of public.inner (domain of numeric(12,2))", False),
        ("domain of character varying(9)", False),
        ("enum", False),
        ("domain of public.e (enum)", False),
        ("domain of public.inner (domain of public.e (enum))", False),
        ("base type", True),
        (None, True),
    ],
)
def test_a_type_of_the_users_own_is_what_it_is_made_of(definition: str | None, refused: bool) -> None:
    if not refused:
        check("public.d", "delta", definition=definition)
        return
    with pytest.raises(SinkRefused, match=r"equal values of the type public\.d may differ"):
        check("public.d", "delta", definition=definition)


def test_a_type_that_a_transform_leaves_as_text_is_the_sources() -> None:
    with pytest.raises(SinkRefused, match="equal values of the type numeric may differ"):
        check("numeric", "delta", arriving="text")
    check("numeric", "delta", arriving="numeric(12,2)")


def test_versions_of_a_row_in_no_order_are_refused_unless_the_key_distinguishes_them() -> None:
    """A lake to which a topic was appended: any of them could win."""
    with pytest.raises(SourceRefused, match=r"raw\.t cannot be upserted by k from s: [^\n]*several versions of a row"):
        check("bigint", "postgres", increments=False, versions=("offset",))
    check("bigint", "postgres", increments=False, versions=("k",))


@pytest.mark.parametrize("rising", ["numeric", "numeric(40,2)", "bytea", "character(3)"])
def test_increments_by_a_column_that_files_order_otherwise_are_not_upserted(rising: str) -> None:
    """No window of them could be found in the files again."""
    check("bigint", "postgres", rising=rising)
    check("bigint", "delta", rising="numeric(12,2)")
    with pytest.raises(SinkRefused, match=r"^Increments by other cannot be upserted into raw\.t: [^\n]*another order"):
        check("bigint", "delta", rising=rising)


@pytest.mark.parametrize(
    ("kind", "after", "consistency", "refused"),
    [
        ("delta", "5", Consistency.STATIC, True),
        ("iceberg", None, Consistency.OFFSETS, True),
        ("delta", None, Consistency.STATIC, False),
        ("postgres", "5", Consistency.STATIC, False),
    ],
)
def test_what_was_appended_is_not_upserted_later(
    kind: str, after: str | None, consistency: Consistency, refused: bool
) -> None:
    """A key may have several rows there. A first copy has one of each, and PostgreSQL's index allows one."""
    plan = make_plan(consistency=consistency)
    window = Window(column="other", after=after, upto="9")
    plan = replace(plan, read=replace(plan.read, window=window), write=replace(plan.write, kind=kind))
    write = replace(plan.write, mode="upsert", key=("k",))
    if not refused:
        check_same_key(plan, write)
        return
    with pytest.raises(InvalidDeclaration, match="were appended, so a key may have several rows there"):
        check_same_key(plan, write)


def test_what_a_source_with_versions_was_appended_of_is_not_upserted_later() -> None:
    """A lake that was filled from a lake with several versions of a key holds them too."""
    plan = replace(make_plan(), versions=("other",))
    plan = replace(plan, write=replace(plan.write, kind="delta"))
    with pytest.raises(InvalidDeclaration, match="were appended, so a key may have several rows there"):
        check_same_key(plan, replace(plan.write, mode="upsert", key=("k",)))
    assert Plan.from_json(plan.to_json()) == plan


def test_increments_by_text_are_upserted_into_files_only_in_the_order_of_bytes() -> None:
    """Files compare bytes. A transformed column has no collation."""
    for collation in ("C", "libc C.UTF-8", "libc C.utf8 2.36", "utf8mb4_bin", "utf8mb4_0900_bin", "ascii_bin", None):
        check("bigint", "iceberg", rising="text", collation=collation)
    for collation in ("libc en_US.UTF-8 2.36", "icu und 153.14", "utf8mb4_0900_ai_ci", "icu C"):
        check("bigint", "postgres", rising="text", collation=collation)
        with pytest.raises(SinkRefused, match=rf"Increments by other [^\n]* ordered by {collation} in the source and"):
            check("bigint", "iceberg", rising="text", collation=collation)
