"""Messages of ``pgoutput``, byte by byte, as changes."""

import struct
from collections.abc import Sequence
from random import Random

import pytest

from airflow_provider_backpressure.connectors.postgres.tasks import pgoutput_batches, pgoutput_decoder
from airflow_provider_backpressure.connectors.postgres.tasks.pgoutput_decoder import Decoder, TableSplitter
from airflow_provider_backpressure.connectors.postgres.tasks.pgoutput_messages import Messages, measure
from airflow_provider_backpressure.core.snapshot.bounds import LogPosition
from airflow_provider_backpressure.core.snapshot.table_alterations import StoredColumn, TableStorage
from airflow_provider_backpressure.core.snapshot.transaction_snapshot import TransactionSnapshot
from airflow_provider_backpressure.exceptions import RangeFailed, SourceRefused
from airflow_provider_backpressure.spark.change_columns import ChangeColumns, ColumnarChanges, split_changes
from airflow_provider_backpressure.spark.change_rows import DELETE, KEPT, MOVE, TRUNCATE, UPSERT, change

ID, NAME, DOC = ("id", True), ("name", False), ("doc", False)


def relation(number: int = 1, *columns: tuple[str, bool], table: str = "t", type: tuple[int, int] = (25, -1)) -> bytes:
    body = b"R" + struct.pack(">I", number) + b"public\0" + table.encode() + b"\0d" + struct.pack(">h", len(columns))
    return body + b"".join(bytes([key]) + name.encode() + b"\0" + struct.pack(">Ii", *type) for name, key in columns)


def begin(lsn: int, xid: int = 7) -> bytes:
    return b"B" + struct.pack(">QqI", lsn, 0, xid)


def row(*values: str | object | None) -> bytes:
    body = struct.pack(">h", len(values))
    for value in values:
        if value is None:
            body += b"n"
        elif isinstance(value, str):
            body += b"t" + struct.pack(">I", len(value.encode())) + value.encode()
        else:
            body += b"u"
    return body


def of(kind: bytes, rest: bytes, number: int = 1) -> bytes:
    return kind + struct.pack(">I", number) + rest


def decoder(
    *columns: str,
    key: tuple[str, ...] = ("id",),
    start: int = 0,
    end: int = 100,
    types: dict[str, tuple[int, int]] | None = None,
    added: tuple[str, ...] = (),
    number: int | None = None,
    storage: TableStorage | None = None,
    seen: TransactionSnapshot | None = None,
) -> Decoder:
    at = {name: LogPosition(at=number, text="") for name, number in (("start", start), ("end", end))}
    return Decoder(
        table=("public", "t"),
        columns=columns or ("id", "name", "doc"),
        key=key,
        types=types,
        added=added,
        number=number,
        storage=storage,
        seen=seen,
        **at,
    )


TOLD = [relation(1, ID, NAME, DOC), begin(5)]


def test_rows_are_passed_on_as_they_are():
    found = decoder().rows([*TOLD, of(b"I", b"N" + row("1", "ä\0b", None)), of(b"D", b"K" + row("2", None, None))])
    assert found == [
        change(1, UPSERT, [b"1", "ä\0b".encode(), None], [None]),
        change(2, DELETE, [b"2", None, None], [None]),
    ]


@pytest.mark.parametrize("columns", [("id", "name", "doc"), ("doc", "id")])
def test_many_messages_at_once_are_what_they_are_one_by_one(
    columns: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whatever order they come, of whatever table, and with whatever values left out; also where columns moved."""
    together, random, texts = list[bool](), Random(11), ["", "x", "ä" * 70, None]

    def read(*args: object, **kwargs: object) -> Sequence[bytes] | None:
        found = pgoutput_batches.read_plain(*args, **kwargs)  # type: ignore[arg-type]
        together.append(found is not None)
        return found

    monkeypatch.setattr(pgoutput_decoder, "read_plain", read)
    names = order = (ID, NAME, DOC)
    messages = [relation(1, *order), relation(2, ID, table="other"), begin(5)]
    for step in range(6000):
        values = {"id": str(step), "name": random.choice(texts), "doc": random.choice(texts), "more": "x"}
        chance = random.random() * (300 if step % 1000 < 500 else 1)
        if chance < 0.1:
            messages.append(begin(random.choice([5, 5, 500])))
        elif chance < 0.15 and columns != ("id", "name", "doc"):
            names = random.choice([order, (DOC, ("more", False), ID, NAME)])
            messages.append(relation(1, *names))
        elif chance < 0.2:
            messages.append(of(b"I", b"N" + row("other"), number=2))
        elif chance < 0.3:
            messages.append(of(b"D", b"O" + row(*(values[name] for name, _ in names))))
        else:
            left_out = {"doc": KEPT} if chance < 0.4 else {}
            told = row(*({**values, **left_out}[name] for name, _ in names))
            messages.append(random.choice([of(b"I", b"N" + told), of(b"U", b"N" + told), of(b"D", b"O" + told)]))
    single, at_once = decoder(*columns), decoder(*columns)
    wanted = [each for message in messages for each in single.rows([message])]
    found = [at_once.rows(messages[at : at + 250]) for at in range(0, len(messages), 250)]
    assert [each for part in found for each in part] == wanted
    assert list(at_once.xids) == list(single.xids)
    assert len(wanted) > 3000
    assert set(together) == {True, False}
    columnar = [part for part in found if isinstance(part, ColumnarChanges)]
    assert columnar
    for part in columnar:
        assert show(part.columns()) == show(split_changes(list(part)))


def show(columns: ChangeColumns) -> list[list[object]]:
    """Return what changes say as lists that can be compared."""
    numbers = [columns.numbers, columns.operations, columns.lacking]
    return [[*map(int, each)] for each in numbers] + [each.to_pylist() for each in (columns.kept, *columns.values)]


def test_messages_lose_what_comes_before_them_and_those_that_have_no_more() -> None:
    """As they arrive by COPY: each behind the beginning of its row, and the end of all has no message."""
    arrived = [b"......one", b"......", b"......three", b"\xff\xff"]
    found = Messages(b"".join(arrived), measure(arrived), before=6)
    assert (list(found), len(found)) == ([b"one", b"three"], 2)


def test_what_did_not_change_is_kept_unless_the_old_row_tells_it():
    update = of(b"U", b"N" + row("1", "new", KEPT))
    full = of(b"U", b"O" + row("1", "old", "long") + b"N" + row("1", "new", KEPT))
    assert decoder().rows([*TOLD, update, full]) == [
        change(1, UPSERT, [b"1", b"new", KEPT], [None]),
        change(2, UPSERT, [b"1", b"new", b"long"], [None]),
    ]


def test_a_changed_key_deletes_the_old_row_and_moves_it():
    by_key = of(b"U", b"K" + row("1", None, None) + b"N" + row("2", "x", KEPT))
    assert decoder().rows([*TOLD, by_key]) == [
        change(1, DELETE, [b"1", None, None], [None]),
        change(2, MOVE, [b"2", b"x", KEPT], [b"1"]),
    ]


def test_the_old_key_says_nothing_of_other_columns():
    """A key that is sent though it is the same fills in itself, and no NULL into the others."""
    update = of(b"U", b"K" + row("1", None, None) + b"N" + row(KEPT, "x", KEPT))
    assert decoder().rows([*TOLD, update]) == [change(1, UPSERT, [b"1", b"x", KEPT], [None])]


def test_only_commits_of_the_window_count():
    """Half-open: one that begins at the start is in, one that begins at the end is not."""
    one = of(b"I", b"N" + row("1", None, None))
    messages = [relation(1, ID, NAME, DOC), begin(9), one, begin(10), one, begin(19), one, begin(20), one]
    assert len(decoder(start=10, end=20).rows(messages)) == 2


@pytest.mark.statement("W8")
def test_only_transactions_that_a_snapshot_sees_count():
    """W8: whatever their place in the log is: one of before may not be seen yet, and one behind it may be."""
    one = of(b"I", b"N" + row("1", None, None))
    messages = [relation(1, ID, NAME, DOC), begin(1, 12), one, begin(2, 14), one, begin(3, 15), one, begin(4, 9), one]
    found = decoder(seen=TransactionSnapshot.parse("12:15:12"))
    assert len(found.rows(messages)) == 2
    assert list(found.xids) == [14, 9]


def test_columns_go_by_name_and_others_are_left_out():
    told = [relation(1, DOC, NAME, ID), begin(5)]
    found = decoder("id", "doc").rows([*told, of(b"I", b"N" + row("d", "n", "1"))])
    assert found == [change(1, UPSERT, [b"1", b"d"], [None])]


def test_other_tables_and_messages_are_passed_over():
    told = [relation(2, ID, table="other"), *TOLD, b"Y" + bytes(8), b"O" + bytes(9)]
    assert decoder().rows([*told, of(b"I", b"N" + row("1"), 2), b"T" + struct.pack(">IBI", 1, 0, 2)]) == []


def test_a_truncate_is_a_change():
    assert decoder().rows([*TOLD, b"T" + struct.pack(">IBII", 2, 0, 9, 1)[:13]][:2]) == []
    told = [relation(9, ID, table="other"), *TOLD]
    found = decoder().rows([*told, b"T" + struct.pack(">IBII", 2, 0, 9, 1)])
    assert found == [change(1, TRUNCATE, [None, None, None], [None])]


@pytest.mark.statement("X6")
def test_a_column_that_is_gone_stops_the_reading():
    """X6: dropped while its changes are replayed."""
    with pytest.raises(SourceRefused, match=r"public\.t had no column doc when changes were logged"):
        decoder().rows([relation(1, ID, NAME), begin(5), of(b"I", b"N" + row("1", "x"))])


@pytest.mark.statement("X6")
def test_a_column_that_was_added_is_null_before():
    """X6: rows that were logged before it came, and rows behind that."""
    grown = decoder("id", "name", added=("name",))
    before, after = of(b"I", b"N" + row("1")), of(b"U", b"N" + row("1", "x"))
    assert grown.rows([relation(1, ID), begin(5), before, relation(1, ID, NAME), after]) == [
        change(1, UPSERT, [b"1", None], [None]),
        change(2, UPSERT, [b"1", b"x"], [None]),
    ]


@pytest.mark.statement("X6")
@pytest.mark.parametrize("logged", [(ID, ("new", False)), (ID, NAME, ("gone", False)), (NAME, ID)])
def test_an_added_column_that_had_another_name_or_place_stops_the_reading(logged: tuple[tuple[str, bool], ...]):
    """X6: its values stand in the log under the name of that time."""
    change = of(b"I", b"N" + row(*["1"] * len(logged)))
    with pytest.raises(SourceRefused, match=r"had column \w+ in another column's place"):
        decoder("id", "name", added=("name",)).rows([relation(1, *logged), begin(5), change])


@pytest.mark.statement("X6")
def test_a_table_that_was_another_while_its_changes_were_logged_stops_the_reading():
    """X6: another type, be it one of more digits, and another replica identity, though all is as planned by now."""
    types = dict.fromkeys(("id", "name"), (1700, 655366))
    others = decoder(types=types)
    change = of(b"D", b"K" + row("1", None, None))
    others.rows([relation(1, ID, NAME, DOC, type=(1700, 655366)), begin(5), change])
    with pytest.raises(SourceRefused, match="had id of another type, and had name of another type when"):
        others.rows([relation(1, ID, NAME, DOC, type=(1700, 655370)), change])
    with pytest.raises(SourceRefused, match="did not have id in its replica identity when"):
        decoder().rows([relation(1, ("id", False), ("name", True), DOC), begin(5), change])
    was = [begin(5), relation(1, ID), of(b"D", b"K" + row("1"))]
    assert len(decoder(start=10).rows([*was, relation(1, ID, NAME, DOC), begin(10), change])) == 1, (
        "was replayed before"
    )


@pytest.mark.statement("X6")
def test_a_table_is_known_by_its_number_whatever_its_name_is():
    """X6: another table had its name for a while, and it had another one."""
    insert, truncate = (of(b"I", b"N" + row("1", None, None), 2), b"T" + struct.pack(">IBI", 1, 0, 2))
    found = decoder(number=1)
    assert found.rows([relation(2, ID, NAME, DOC), begin(5), insert, truncate]) == []
    with pytest.raises(SourceRefused, match=r"public\.t was named public\.u when"):
        found.rows([relation(1, ID, NAME, DOC, table="u"), of(b"I", b"N" + row("1", None, None))])


@pytest.mark.statement("X6")
def test_a_column_that_had_the_name_of_another_one_stops_the_reading():
    """X6: two columns of one type exchanged their names for a while."""
    columns = tuple(
        StoredColumn(name=name, number=number, version="", filled=False)
        for number, name in enumerate(("id", "name", "doc"), 1)
    )
    storage = TableStorage(table="public.t", lock="", relations=((1, 1),), columns=columns, dropped=())
    found = decoder("id", "name", storage=storage)
    insert = of(b"I", b"N" + row("1", "a", "b"))
    assert len(found.rows([relation(1, ID, NAME, DOC), begin(5), insert])) == 1
    with pytest.raises(SourceRefused, match=r"public\.t had name as the name of another column when"):
        found.rows([relation(1, ID, DOC, NAME), insert])


def test_a_value_in_binary_was_not_asked_for():
    with pytest.raises(RangeFailed, match="'b'"):
        decoder().rows([*TOLD, of(b"I", b"N" + struct.pack(">h", 3) + b"b" + struct.pack(">I", 0))])


def test_a_window_holds_the_commits_from_its_start_to_before_its_end():
    """One at a bound belongs to just one of two windows that follow each other."""
    insert = of(b"I", b"N" + row("1", None, None))
    for at, within in {9: False, 10: True, 19: True, 20: False}.items():
        found = decoder(start=10, end=20)
        assert bool(found.rows([TOLD[0], begin(at), insert])) is within
        assert list(found.xids) == [7] * within


def two_tables() -> TableSplitter:
    first, second = decoder(), decoder("id", "name")
    second._table = ("public", "u")
    return TableSplitter([first, second])


def test_messages_of_a_shared_log_go_to_the_decoders_of_their_tables():
    splitter = two_tables()
    first, second = (change(number, UPSERT, [b"1", b"a", None], [None]) for number in (1, 2))
    other = change(1, UPSERT, [b"2", b"b"], [None])
    rows = [of(b"I", b"N" + row("1", "a", None)), of(b"I", b"N" + row("2", "b"), 2), of(b"I", b"N" + row("9"), 3)]
    told = [relation(1, ID, NAME, DOC), relation(2, ID, NAME, table="u"), relation(3, ID, table="of no decoder")]
    assert list(splitter.rows([begin(5), *told, *rows, rows[0]])) == [(0, [first, second]), (1, [other])]


def test_a_transaction_begins_for_each_table_that_it_changes_and_for_no_other():
    """A decoder drops what is not in its window, and knows the transactions whose changes it has returned."""
    splitter = two_tables()
    told = [relation(1, ID, NAME, DOC), relation(2, ID, NAME, table="u")]
    mine, other = of(b"I", b"N" + row("1", "a", None)), of(b"I", b"N" + row("2", "b"), 2)
    assert list(splitter.rows([begin(5), *told, mine])) == [(0, [change(1, UPSERT, [b"1", b"a", None], [None])])]
    assert list(splitter.rows([other])) == [(1, [change(1, UPSERT, [b"2", b"b"], [None])])]
    assert list(splitter.rows([begin(100), mine, other])) == []
    assert [len(each.xids) for each in splitter._decoders] == [1, 1]


def test_one_truncate_empties_all_tables_that_it_names():
    splitter = two_tables()
    told = [relation(1, ID, NAME, DOC), relation(2, ID, NAME, table="u")]
    truncate = b"T" + struct.pack(">IBII", 2, 0, 1, 2)
    found = dict(splitter.rows([begin(5), *told, truncate]))
    assert found == {place: [change(1, TRUNCATE, [None] * (3 - place), [None])] for place in (0, 1)}


def test_what_came_before_a_table_was_altered_is_decoded_by_its_columns_of_then():
    splitter = two_tables()
    before, after = of(b"I", b"N" + row("1", "a", None)), of(b"I", b"N" + row(None, "2", "b"))
    told = [begin(5), relation(1, ID, NAME, DOC), before, relation(1, DOC, ID, NAME), after]
    found = [each for _, rows in splitter.rows(told) for each in rows]
    assert found == [change(1, UPSERT, [b"1", b"a", None], [None]), change(2, UPSERT, [b"2", b"b", None], [None])]
