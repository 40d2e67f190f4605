"""Conditions that each range would answer otherwise, as PostgreSQL shows them."""

import pytest

from airflow_provider_backpressure.connectors.postgres.source.checks import _CLOCK


@pytest.mark.parametrize(
    "shown",
    [
        "(random_normal() > (0)::double precision)",
        "(id <> uuidv7())",
        "(id <> uuidv4())",
        "(id <> public.uuid_generate_v1mc())",
        "(id <> gen_random_uuid())",
        "(random() < (0.5)::double precision)",
    ],
)
def test_chance_is_seen_in_a_condition(shown: str) -> None:
    """Functions of later releases and of extensions too."""
    assert _CLOCK.search(shown)


@pytest.mark.parametrize("shown", ["(my_random(v) > 1)", "(randomize(v) > 1)", "(uuid_of(v) = id)"])
def test_a_name_that_only_begins_so_is_no_chance(shown: str) -> None:
    """A user's own functions are theirs."""
    assert not _CLOCK.search(shown)
