"""Positions, pieces and windows of a database's log."""

from dataclasses import replace

import pytest

from airflow_provider_backpressure.core.snapshot.bounds import LogBounds, LogPosition, bounds_from_json
from airflow_provider_backpressure.core.snapshot.gtid_set import GtidSet
from airflow_provider_backpressure.core.snapshot.replay_window import ReplayWindow, goal, number_windows
from airflow_provider_backpressure.core.snapshot.spark_messages import Window
from airflow_provider_backpressure.exceptions import InvalidDeclaration


def at(number: int) -> LogPosition:
    return LogPosition(at=number, text=f"0/{number:X}")


WINDOW = ReplayWindow(stream="s", start=at(10), end=at(30), goal=at(20), first=True, hydrating=True)


def test_positions_are_ordered_by_where_they_stand_and_come_back_from_their_text():
    assert at(9) < at(10)
    assert at(10) == LogPosition(at=10, text="another name of it")
    assert LogPosition.parse("10 uuid:1-5, uuid2:7").text == "uuid:1-5, uuid2:7"
    assert str(at(10)) == "10 0/A"
    with pytest.raises(InvalidDeclaration, match="-1"):
        at(-1)


def test_a_piece_comes_back_from_json_and_cannot_be_empty():
    piece = LogBounds(stream="s", start=at(10), end=at(12))
    assert bounds_from_json(piece.to_json()) == piece
    assert (piece.length, str(piece)) == (2, "log [0/A, 0/C)")
    with pytest.raises(InvalidDeclaration, match="empty"):
        LogBounds(stream="s", start=at(10), end=at(10))


@pytest.mark.statement("T8")
def test_a_window_knows_whether_it_reaches_the_goal():
    """T8: a formula."""
    assert WINDOW.reached
    assert not replace(WINDOW, goal=at(31)).reached
    assert replace(WINDOW, goal=at(30)).reached
    with pytest.raises(InvalidDeclaration, match="empty"):
        replace(WINDOW, end=at(10))


def test_a_window_travels_with_its_plan():
    window = WINDOW.window("10 0/A")
    assert window.after == "10 0/A"
    assert ReplayWindow.from_window(window) == WINDOW
    assert ReplayWindow.from_window(Window(column="id", after=None, upto="7")) is None
    assert ReplayWindow.from_window(None) is None


def test_the_goal_is_the_latest_position_that_a_marker_tells():
    assert goal(at(10), ["", str(at(40)), str(at(20))]) == at(40)
    assert goal(at(10), [""]) == at(10)


P, R = "00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-00000000000b"


def gtids(text: str) -> LogPosition:
    text = text.replace("P:", f"{P}:").replace("R:", f"{R}:")
    return LogPosition(at=GtidSet.parse(text).count, text=text)


@pytest.mark.statement("T8")
def test_a_set_of_transactions_is_reached_by_its_transactions_and_not_by_their_number():
    """T8: a server that took another one's place may have as many, and others."""
    assert gtids("P:1-10").has_reached(gtids("P:1-8"))
    assert gtids("P:1-10").has_reached(replace(gtids("P:1-10"), text=f"{P}:1-10@{R}/7/binlog.1:4"))
    assert not gtids("P:1-8,R:1-9").has_reached(gtids("P:1-10"))
    assert not replace(WINDOW, start=gtids("P:1-5"), end=gtids("P:1-8,R:1-9"), goal=gtids("P:1-10")).reached
    assert LogPosition(at=0, text="").transactions is None, "a server without any transaction"
    assert gtids("P:1").has_reached(LogPosition(at=0, text=""))
    assert not LogPosition(at=0, text="").has_reached(gtids("P:1"))


@pytest.mark.statement("T8")
def test_the_goal_has_the_transactions_of_all_markers():
    """T8: the one with most of them need not have those of the others."""
    found = goal(gtids("P:1-5"), [str(gtids("P:1-10")), "", str(gtids("P:1-8,R:1-9")), str(gtids("P:1-10"))])
    assert str(found) == f"19 {P}:1-10,{R}:1-9"
    assert goal(gtids("P:1-5"), [str(gtids("P:1-9"))]) == gtids("P:1-9")
    assert goal(LogPosition(at=0, text=""), [str(gtids("P:1-9"))]).text == f"{P}:1-9"


def test_the_goal_names_the_farthest_place_in_each_file():
    """A start may have transactions behind its place, and positions of older versions have no place."""

    def read(last: int, place: str) -> str:
        return f"{last} {P}:1-{last}{place}"

    start = LogPosition.parse(read(5, f"@{P}/1/b.1:50@{R}:1-3"))
    told = [read(6, f"@{P}/1/b.1:70"), read(9, f"@{P}/2/b.2:4"), read(7, f"@{P}/1/b.1:80"), read(8, "")]
    found = goal(start, told)
    assert str(found) == f"9 {P}:1-9@{P}/1/b.1:80@{P}/2/b.2:4"
    assert goal(found, []).places == found.places
    assert LogPosition(at=0, text=f"@b.1:4@{R}:1-3").places == {"b.1": 4}


def test_ranges_of_a_log_are_measured_in_its_bytes():
    ranges = list(number_windows([LogBounds(stream="s", start=at(n), end=at(n + 5)) for n in (0, 5)]))
    assert [(each.seq, each.rows, each.bytes) for each in ranges] == [(0, 5, 5), (1, 5, 5)]
