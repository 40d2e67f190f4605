"""Sets of transactions, as MySQL prints and encodes them."""

import random
import struct

import pytest

from airflow_provider_backpressure.core.snapshot.gtid_set import GtidSet
from airflow_provider_backpressure.exceptions import SourceRefused

ONE, TWO = "00000000-0000-0000-0000-000000000001", "ffffffff-ffff-ffff-ffff-fffffffffff2"


def numbers(found: GtidSet) -> set[tuple[str, int]]:
    return {
        (name, each) for name, pieces in found.sources.items() for start, end in pieces for each in range(start, end)
    }


def set_of(found: set[tuple[str, int]]) -> GtidSet:
    return GtidSet.parse(",".join(f"{name}:{number}" for name, number in found))


def test_what_mysql_prints_is_read_and_printed_again():
    text = f"{ONE}:1-5:7,\n{TWO.upper()}:9-10"
    assert str(GtidSet.parse(text)) == f"{ONE}:1-5:7,{TWO}:9-10"
    assert GtidSet.parse(text).count == 8
    assert str(GtidSet.parse("")) == ""
    assert GtidSet.parse("").count == 0


def test_what_lies_next_to_each_other_is_one_interval():
    assert str(GtidSet.parse(f"{ONE}:4-6:1-3:6-9")) == f"{ONE}:1-9"


@pytest.mark.parametrize("seed", range(20))
def test_sets_behave_as_those_of_python(seed: int):
    chance = random.Random(seed)
    every = [(name, number) for name in (ONE, TWO) for number in range(1, 30)]
    mine, other = (set(chance.sample(every, chance.randint(0, 40))) for _ in range(2))
    left, right = set_of(mine), set_of(other)
    assert numbers(left) == mine
    assert numbers(left.union(right)) == mine | other
    assert numbers(left.minus(right)) == mine - other
    assert left.within(right) == (mine <= other)
    assert left.count == len(mine)
    assert all(left.has(*each) == (each in mine) for each in every)
    pieces = [numbers(piece) for piece in left.pieces(3)]
    assert set().union(*pieces) == mine
    assert sum(map(len, pieces)) == len(mine)
    assert all(len(piece) <= 3 for piece in pieces)


def test_the_servers_form_has_open_ends():
    assert GtidSet.parse(f"{ONE}:1-5").encode() == struct.pack("<Q", 1) + bytes(15) + b"\1" + struct.pack(
        "<QQQ", 1, 1, 6
    )


@pytest.mark.parametrize("text", ["5", "uuid:1", f"{ONE}:a-b"])
def test_what_is_no_set_is_refused(text: str):
    with pytest.raises(SourceRefused, match="MySQL prints"):
        GtidSet.parse(text)


def test_tagged_ones_are_refused_by_name():
    with pytest.raises(SourceRefused, match=r"have a tag[^\n]*catch_up knows no tagged GTIDs"):
        GtidSet.parse(f"{ONE}:night:1-5")
