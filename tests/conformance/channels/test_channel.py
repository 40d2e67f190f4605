"""What every transport promises: diffs go to those that have subscribed to their hydration, and nothing raises."""

import pytest

from tests.conformance.channels.support import Ends, diff, new_id
from tests.support.waiting import until


@pytest.mark.statement("P3")
def test_diffs_come_as_they_were_sent(ends: Ends) -> None:
    """P3: published there, heard here, with everything that was in them."""
    hydration = new_id()
    ends.subscribe(hydration)
    sent = [
        diff(hydration, 1, changes={"credits": 3, "paused_by": None, "commit_seconds": 0.25}, in_flight=-1, seq=7),
        diff(hydration, 2, changes={"paused_by": "ada", "paused_why": 'it\'s "späť" \\ \x00'}),
        diff(hydration, 3, changes=None),
    ]
    for each in sent:
        ends.there.publish(hydration, each)
    until(lambda: len(ends.heard.frames) == len(sent))
    assert ends.heard.diffs == sent
    assert ends.here.healthy


@pytest.mark.statement("P3")
def test_one_hears_oneself(ends: Ends) -> None:
    """P3: whoever publishes may be among those that wait."""
    hydration = new_id()
    ends.subscribe(hydration)
    ends.here.publish(hydration, diff(hydration, 1))
    until(lambda: ends.heard.numbers(hydration) == [1])


@pytest.mark.statement("P3", "P4")
def test_subscribing_is_idempotent_and_so_is_the_way_back(ends: Ends) -> None:
    """P3, P4: subscribed twice, a message comes once; unsubscribed twice, none comes, and others are heard on."""
    mine, other, never = new_id(), new_id(), new_id()
    ends.subscribe(mine)
    ends.here.subscribe(mine)
    ends.subscribe(other)
    ends.there.publish(never, diff(never, 1))
    ends.there.publish(mine, diff(mine, 1))
    ends.there.publish(other, diff(other, 1))
    until(lambda: ends.heard.numbers(other) == [1])
    assert ends.heard.numbers(mine) == [1]
    assert ends.heard.numbers(never) == []
    ends.here.unsubscribe(mine)
    ends.here.unsubscribe(mine)
    # A later subscription is in force when the end of the earlier one is.
    later = new_id()
    ends.subscribe(later)
    ends.there.publish(mine, diff(mine, 2))
    ends.there.publish(later, diff(later, 1))
    until(lambda: ends.heard.numbers(later) == [1])
    assert ends.heard.numbers(mine) == [1]
    ends.here.unsubscribe(never)


@pytest.mark.statement("P4")
def test_who_leaves_and_comes_back_at_once_is_told_again(ends: Ends) -> None:
    """P4: the last waiter goes and the next one comes, before a thread of the channel has looked."""
    hydration = new_id()
    ends.subscribe(hydration)
    ends.here.unsubscribe(hydration)
    ends.here.subscribe(hydration)
    until(lambda: ends.heard.ready == [hydration] * 2)
    ends.there.publish(hydration, diff(hydration, 1))
    until(lambda: ends.heard.numbers(hydration) == [1])


@pytest.mark.statement("P9")
def test_a_diff_too_big_for_the_transport_tells_its_number(ends: Ends) -> None:
    """P9: oversize: what matters is that something has changed."""
    hydration = new_id()
    ends.subscribe(hydration)
    ends.there.publish(hydration, diff(hydration, 5, changes={"paused_why": "x" * 200_000}))
    (found,) = until(lambda: ends.heard.diffs)
    assert found.number == 5
    assert found.changes is None or ends.transport == "local"


@pytest.mark.statement("P9")
def test_anything_else_on_the_channel_is_handed_on_as_it_is(ends: Ends) -> None:
    """P9: another program's words are for the receiver to ignore."""
    hydration = new_id()
    ends.subscribe(hydration)
    ends.inject(hydration, b"hello, not for you")
    ends.there.publish(hydration, diff(hydration, 1))
    until(lambda: len(ends.heard.frames) == 2)
    assert ends.heard.numbers(hydration) == [1]


def test_what_was_flushed_is_on_its_way(ends: Ends) -> None:
    """A process may end right after it."""
    hydration = new_id()
    ends.subscribe(hydration)
    for number in range(300):
        ends.there.publish(hydration, diff(hydration, number))
    assert ends.there.flush(20.0)
    ends.there.close()
    until(lambda: len(ends.heard.frames) == 300)
    assert ends.heard.numbers(hydration) == list(range(300))


def test_a_closed_end_is_silent(ends: Ends) -> None:
    """Closed twice, published to and subscribed: nothing comes and nothing raises."""
    hydration = new_id()
    for _ in range(2):
        ends.here.close()
    ends.here.subscribe(hydration)
    ends.here.publish(hydration, diff(hydration, 1))
    assert ends.here.flush(1.0)
