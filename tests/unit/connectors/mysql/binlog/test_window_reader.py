"""A walk over events that a server sent: an insert, an update of the key, a delete, each a transaction."""

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_backpressure.connectors.mysql.binlog.character_sets import Charset
from airflow_provider_backpressure.connectors.mysql.binlog.column_decoders import Row, Wanted
from airflow_provider_backpressure.connectors.mysql.binlog.event_stream import HEAD, Event, Kind, changes_nothing
from airflow_provider_backpressure.connectors.mysql.binlog.table_map import table_of
from airflow_provider_backpressure.connectors.mysql.binlog.window_reader import Done, Walk, WalkedTable
from airflow_provider_backpressure.connectors.mysql.identifiers import TableName
from airflow_provider_backpressure.core.snapshot.gtid_set import GtidSet
from airflow_provider_backpressure.exceptions import LogLost, SourceRefused

SERVER = "b626de1d-e614-11f1-a149-02fc00000001"
GTID = (
    "00b626de1de61411f1a14902fc00000001{:02x}00000000000000024b000000000000004c0000000000000091d921c8d36006fcdd019f38"
)
SAID = "b10200000000000004000025000000000000012000a04500000000060373746404ff00ff00ff0005062b30303a303012ff00706c617900"
MAP = (
    "810000000000010004706c61790003726177000b03f6f61312110af510fe0f0e0f02411e030206040201f8010500fe0701010002010804170269"
    "64016101620163016401650166016701680169016a0a03fcff00050502017801790801000c02ffe0"
)
LOAD = (
    bytes.fromhex(SAID[:26])
    + bytes(13)
    + bytes.fromhex(SAID[26:])
    + b"LOAD DATA LOCAL INFILE 'a' INTO TABLE `raw` (`id`)"
)
VALUES = (
    "80000000000000000000000000000{}1dcd6500000000000000000000007fef7cf63c99b2bb7efa0c7fffffff0f423f22d00736000000000200"
    "3500120001001300020002150000310061626204001c000501000b10000400000c180000000000000004c003c3a90a0000040002010301e9"
).format("001")
FIRST = "0000010000007ffffffffffffe" + VALUES
SECOND = "020002000000" + VALUES
TYPES = {
    "id": "integer",
    "a": "numeric(15,2)",
    "b": "numeric(65,30)",
    "c": "interval",
    "d": "timestamp without time zone",
    "e": "timestamp with time zone",
    "f": "date",
    "g": "json",
    "h": "bit(10)",
    "i": "text",
    "j": "character varying(5)",
}
LATIN = Charset(name="latin1", longest=1, table=bytes(range(256)).decode("latin-1"))
CHARSETS = {8: LATIN, 255: Charset(name="utf8mb4", longest=4)}
SHOWN = [
    b"1",
    b"-0.01",
    b"1.5" + b"0" * 29,
    b"-01:02:03.25",
    b"2024-02-29 23:59:58.12",
    b"2038-01-19 03:14:07.999999+00",
    b"1000-01-02",
    '{"a": [1, -2.5, null, "é\\n"], "bb": {}}'.encode(),
    b"1000000001",
    b"x,y",
    "é".encode(),
]


def gtid(number: int) -> Event:
    return Event(Kind.GTID, bytes.fromhex(GTID.format(number)))


def said(text: str) -> Event:
    return Event(Kind.QUERY, bytes.fromhex(SAID) + text.encode())


def rows(kind: Kind, *images: str) -> Event:
    bitmaps = "ffff" * (2 if kind is Kind.UPDATE else 1)
    return Event(kind, bytes.fromhex("810000000000010002000b" + bitmaps + "".join(images)))


BEGIN, TABLE = said("BEGIN"), Event(Kind.TABLE_MAP, bytes.fromhex(MAP))
INSERT, UPDATE, DELETE = rows(Kind.WRITE, FIRST), rows(Kind.UPDATE, FIRST, SECOND), rows(Kind.DELETE, SECOND)
LOG = [gtid(76), BEGIN, TABLE, INSERT, gtid(77), BEGIN, TABLE, UPDATE, gtid(78), BEGIN, TABLE, DELETE]


OWN = {"table", "wanted", "by_primary", "start", "required"}
"""What a walk knows of each table."""


def walk_of(*tables: WalkedTable, first: int = 76, last: int = 78, **changes: Any) -> Walk:
    start, end = GtidSet.parse(f"{SERVER}:1-{first - 1}"), GtidSet.parse(f"{SERVER}:1-{last}")
    return Walk(**{"tables": tables, "charsets": CHARSETS, "start": start, "end": end, **changes})


def followed(name: str = "raw", **changes: Any) -> WalkedTable:
    table = TableName(database="play", name=name)
    return WalkedTable(**{"table": table, "wanted": Wanted(types=TYPES, key=("id",)), **changes})


def walked(*events: Event, **changes: Any) -> list[tuple[Done, Row]]:
    """Walk for one table, and return its changes."""
    own = {name: changes.pop(name) for name in OWN & changes.keys()}
    return [(done, row) for _, done, row in walk_of(followed(**own), **changes).changes(events)]


def test_every_change_is_told_in_the_logs_order():
    inserted, deleted, updated, gone = walked(*LOG)
    assert inserted == (Done.WRITTEN, SHOWN)
    assert deleted == (Done.DELETED, [b"1", *[None] * 10]), "the row of the old key"
    assert updated == (Done.WRITTEN, [b"2", None, *SHOWN[2:]])
    assert (gone[0], gone[1][0]) == (Done.DELETED, b"2")


def test_it_stops_at_the_first_transaction_behind_its_end():
    assert len(walked(*LOG, last=76)) == 1
    assert len(walked(*LOG, last=77)) == 3


def test_columns_come_in_the_plans_order_and_others_are_passed_over():
    wanted = Wanted(types={"j": TYPES["j"], "id": "integer"}, key=("id",))
    assert walked(*LOG, last=76, wanted=wanted) == [(Done.WRITTEN, ["é".encode(), b"1"])]


def test_other_tables_are_passed_over():
    assert walked(*LOG, table=TableName(database="play", name="other")) == []


def test_names_are_compared_as_the_server_compares_them():
    written = [BEGIN, Event(Kind.TABLE_MAP, TABLE.body.replace(b"\x03raw", b"\x03RAW")), INSERT]
    for folding, found in ((0, 0), (1, 0), (2, 1)):
        assert len(walked(gtid(76), *written, last=76, folding=folding)) == found
    assert len(walked(*LOG, folding=1)) == 4


def test_rows_of_a_table_whose_name_is_folded_alike_are_of_another_one():
    """Servers have other small letters than Python's comparison without case, for which both names are one."""
    sharp = TableName(database="play", name="straße")
    assert walked(gtid(76), *renamed("strasse"), last=76, table=sharp, folding=1) == []
    assert len(walked(gtid(76), *renamed("straße"), last=76, table=sharp, folding=1)) == 1


def test_a_log_that_ends_too_early_is_lost():
    with pytest.raises(LogLost, match="ended 1 transactions before"):
        walked(*LOG[:8])


def test_transactions_out_of_order_are_refused():
    with pytest.raises(SourceRefused, match="binlog_order_commits"):
        walked(gtid(79), *LOG)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (Event(Kind.ANONYMOUS, b""), "without a GTID"),
        (Event(Kind.TAGGED, b""), "with a tag"),
        (Event(Kind.INCIDENT, b""), "lacks changes"),
        (Event(Kind.PARTIAL_UPDATE, INSERT.body), "binlog_row_value_options"),
        (Event(Kind.OLD_WRITE, INSERT.body), "log_bin_use_v1_row_events"),
        (Event(Kind.XA_PREPARE, b"\0"), "XA transaction"),
        (said("ROLLBACK"), "rolled back"),
        (said("ROLLBACK TO `a`"), "rolled back"),
        (said("ALTER TABLE raw DROP COLUMN a"), "another table"),
        (said("INSERT INTO raw VALUES (1)"), "binlog_format"),
        (Event(Kind.LOAD, LOAD), r"play\.raw by a statement [^\n]*LOAD DATA LOCAL INFILE"),
        (Event(99, b""), "event of kind 99, which this version does not know"),
        (Event(Kind.WRITE, INSERT.body.replace(b"\xff\xff", b"\xff\xfc", 1)), "binlog_row_image"),
    ],
)
def test_what_cannot_be_replayed_stops_it_by_name(event: Event, words: str):
    with pytest.raises((SourceRefused, LogLost), match=f'{words}[^\n]*"backpressure": "restart"'):
        walked(*LOG[:4], event, last=76)


def test_an_event_without_rows_is_passed_over():
    assert walked(*LOG[:4], Event(Kind.XA_PREPARE, b"\1"), *LOG[4:], last=76)
    flagged, plain = bytes(HEAD - 2) + b"\x80\x00", bytes(HEAD)
    assert changes_nothing(99, flagged)
    assert not changes_nothing(99, plain)
    assert changes_nothing(16, plain), "the end of a transaction"
    assert not any(changes_nothing(kind, flagged) for kind in Kind if kind is not Kind.FORMAT), "each is looked at"


XID = "X'78',X'0a',1"
PREPARED = Event(Kind.XA_PREPARE, bytes.fromhex("00010000000100000001000000780a"))


@pytest.mark.statement("X6")
def test_an_xa_commit_without_its_prepare_stops_it_unless_every_range_has_seen_it():
    """X6: its rows are in the log before the start, and it was not committed yet when ranges were read."""
    log, before = [gtid(76), PREPARED, gtid(77), said(f"XA COMMIT {XID}")], GtidSet.parse(f"{SERVER}:1-75")
    assert walked(*log, last=77, required=before) == []
    with pytest.raises(SourceRefused, match=r"XA transaction X'78',X'0a',1, which was prepared before[^\n]*restart"):
        walked(*log[2:], first=77, last=77, required=before)
    assert walked(*log[2:], first=77, last=77, required=GtidSet.parse(f"{SERVER}:1-77")) == []
    assert walked(*log[2:], first=77, last=77, required=before, is_prepared=lambda xid, number: xid == XID) == []
    assert walked(*log[2:], first=77, last=77) == [], "a plan of an earlier release does not know its start"
    assert walked(log[2], said(f"XA ROLLBACK {XID}"), first=77, last=77, required=before) == []


def test_an_xa_transaction_that_commits_at_once_is_one_as_any():
    assert len(walked(*LOG[:4], Event(Kind.XA_PREPARE, b"\1"), last=76)) == 1


@pytest.mark.parametrize("charset", ["gbk", "big5"])
def test_a_statement_is_read_in_the_character_set_of_its_client(charset: str):
    """These bytes are UTF-8 too, of another name. A set that is not known here may have any name in it."""
    table, collation = TableName(database="play", name="一丌"), 28
    statement = f"TRUNCATE TABLE {table.name}".encode("gbk")
    assert statement.decode() != f"TRUNCATE TABLE {table.name}"
    body = bytes.fromhex(SAID.replace("04ff00ff00ff00", f"04{collation:02x}00{collation:02x}00ff00")) + statement
    known = {**CHARSETS, collation: Charset(name=charset, longest=2)}
    log = [gtid(76), Event(Kind.QUERY, body)]
    if charset == "gbk":
        assert walked(*log, last=76, table=table, charsets=known) == [(Done.TRUNCATED, [None] * 11)]
        assert walked(*log, last=76, charsets=known) == []
    else:
        with pytest.raises(SourceRefused, match="another table"):
            walked(*log, last=76, table=table, charsets=known)


def test_a_truncated_table_is_emptied():
    assert walked(gtid(76), said("TRUNCATE TABLE raw"), last=76) == [(Done.TRUNCATED, [None] * 11)]


def test_a_temporary_table_of_the_same_name_that_is_emptied_is_refused():
    """It was made before the window, so only a flag of the event distinguishes it from the table that is followed."""
    emptied = replace(said("TRUNCATE TABLE raw"), of_session=True)
    with pytest.raises(SourceRefused, match=r"empties a temporary table that is called play\.raw too"):
        walked(gtid(76), emptied, last=76)
    assert walked(gtid(76), emptied, last=76, table=TableName(database="play", name="other")) == []


def test_a_table_that_became_another_one_is_refused():
    with pytest.raises(SourceRefused, match=r"h of play\.raw was logged as bit\(10\), and the plan reads bit\(9\)"):
        walked(*LOG, wanted=Wanted(types={**TYPES, "h": "bit(9)"}, key=("id",)))
    with pytest.raises(SourceRefused, match="had no column z"):
        walked(*LOG, wanted=Wanted(types={**TYPES, "z": "text"}, key=("id",)))


def test_a_log_without_names_is_refused():
    body = bytes.fromhex(MAP)
    names = body.index(bytes.fromhex("041702"))
    assert not table_of(body[:names] + body[names + 25 :]).named
    with pytest.raises(SourceRefused, match="binlog_row_metadata"):
        walked(gtid(76), Event(Kind.TABLE_MAP, body[:names] + body[names + 25 :]), last=76)


def renamed(name: str) -> list[Event]:
    """Return a transaction's first events as they are for another table, with a number of its own."""
    body = TABLE.body.replace(b"\x03raw", bytes([len(name.encode())]) + name.encode()).replace(b"\x81", b"\x82", 1)
    return [BEGIN, Event(Kind.TABLE_MAP, body), Event(Kind.WRITE, INSERT.body.replace(b"\x81", b"\x82", 1))]


@pytest.mark.statement("W1")
def test_one_walk_has_the_changes_of_several_tables_each_by_its_own_columns():
    """W1: of one transaction over two of them too. What nobody asks for is passed over."""
    narrow = followed("order", wanted=Wanted(types={"j": TYPES["j"]}, key=("j",)))
    log = [gtid(76), BEGIN, TABLE, INSERT, *renamed("order"), gtid(77), *renamed("other")]
    found = list(walk_of(followed(), narrow, last=77).changes(log))
    assert found == [(0, Done.WRITTEN, SHOWN), (1, Done.WRITTEN, ["é".encode()])]


def test_one_table_that_two_targets_follow_is_given_to_both():
    """Their names differ in case alone, which this server ignores: it has one in lower case."""
    tables = followed(), followed()
    assert [number for number, *_ in walk_of(*tables, folding=1, last=76).changes(LOG)] == [0, 1]


@pytest.mark.statement("W6")
def test_a_table_leaves_out_what_was_before_it_joined():
    """W6: it may have been another table then. The cached columns of that time do not hide what comes behind it."""
    late = followed(start=GtidSet.parse(f"{SERVER}:1-76"))
    log = [gtid(76), said("TRUNCATE TABLE raw"), said("DROP TABLE raw"), *LOG[1:]]
    found = list(walk_of(late, last=77).changes(log))
    assert [done for _, done, _ in found] == [Done.DELETED, Done.WRITTEN]
    between = followed(start=GtidSet.parse(f"{SERVER}:77"))
    found = list(walk_of(between, last=78).changes(LOG))
    assert [done for _, done, _ in found] == [Done.WRITTEN, Done.DELETED], "without the update in between"
    both = followed("raw"), late
    log = [gtid(76), said("TRUNCATE TABLE raw"), *LOG[1:]]
    numbers = [number for number, *_ in walk_of(*both, last=77).changes(log)]
    assert numbers == [0, 0, 0, 0, 1, 1]


@pytest.mark.statement("W6")
@pytest.mark.parametrize(
    ("event", "refused"),
    [
        (Event(Kind.INCIDENT, b""), None),
        (Event(99, b""), None),
        (Event(Kind.ANONYMOUS, b""), None),
        (said("INSERT INTO other VALUES (1)"), None),
        (Event(Kind.XA_PREPARE, b"\0"), 1),
        (said("ROLLBACK"), 1),
        (said("DROP TABLE raw"), 1),
        (said("ALTER TABLE another DROP COLUMN a"), 0),
        (Event(Kind.WRITE, INSERT.body.replace(b"\xff\xff", b"\xff\xfc", 1)), 1),
        (Event(Kind.PARTIAL_UPDATE, INSERT.body), 1),
    ],
)
def test_an_error_is_about_one_table_or_about_the_log(event: Event, refused: int | None):
    """W6: the table that it is about can be left out; what is about the log would be there again without any table."""
    walk = walk_of(followed("another"), followed(), last=76)
    with pytest.raises((SourceRefused, LogLost)):
        list(walk.changes([*LOG[:4], event]))
    assert walk.refused == refused


def test_a_server_that_breaks_off_is_no_table_s_error():
    walk = walk_of(followed(), last=76)

    def events():
        yield from LOG[:4]
        raise LogLost("the file is gone")

    with pytest.raises(LogLost):
        list(walk.changes(events()))
    assert walk.refused is None


@pytest.mark.statement("X6")
def test_an_xa_commit_is_compared_with_each_table_s_own_start():
    """X6: it was prepared before one of the tables joined, whose ranges have not seen its commit."""
    early = followed("another", required=GtidSet.parse(f"{SERVER}:1-75"))
    joined = GtidSet.parse(f"{SERVER}:1-76")
    log = [gtid(76), PREPARED, gtid(77), said(f"XA COMMIT {XID}")]
    asked: list[int] = []

    def is_prepared(xid: str, number: int) -> bool:
        asked.append(number)
        return False

    walk = walk_of(early, followed(start=joined, begun=joined, required=joined), last=77, is_prepared=is_prepared)
    with pytest.raises(SourceRefused, match="was prepared before the log was kept"):
        list(walk.changes(log))
    assert (walk.refused, asked) == (1, [1])
    settled = followed(start=joined, begun=joined, required=GtidSet.parse(f"{SERVER}:1-77"))
    assert list(walk_of(early, settled, last=77).changes(log)) == []
    begun = GtidSet.parse(f"{SERVER}:1-75")
    ahead = followed(start=joined, begun=begun, required=begun)
    assert list(walk_of(early, ahead, last=77).changes(log)) == [], "its target has the prepare by another window"
