"""Names in a list of hydrations."""

import pytest

from airflow_provider_backpressure.cli.render.overview import short

STREAM = "backpressure_" + "0123456789abcdef" * 2


@pytest.mark.parametrize(
    ("identity", "name"),
    [
        ("postgres://db:5432/shop/public.orders", "public.orders"),
        (f"postgres://db:5432/shop/{STREAM}", "shared log"),
        (f"postgres://db:5432/dwh/raw.{STREAM}", "shared log (raw)"),
        ("postgres://db:5432/shop/public.backpressure_commit", "public.backpressure_commit"),
    ],
)
def test_a_name_says_what_it_is_and_no_id(identity: str, name: str) -> None:
    assert short(identity) == name
