"""Keys whose order in files is another one than in the source."""

import pytest

from airflow_provider_backpressure.connectors.lake.sink.spark_mirror_key_order import check_order
from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.exceptions import SinkRefused

pytestmark = pytest.mark.statement("L2")


@pytest.mark.parametrize(
    ("type_", "collation", "words"),
    [
        ("numeric", None, r"files keep k \(numeric\) in a form"),
        ("character(3)", "C", r"files keep k \(character\(3\)\) in a form"),
        ("text", "libc en_US.utf8 2.36", "ordered by libc en_US.utf8"),
        ("text", "utf8mb4_0900_ai_ci", "ordered by utf8mb4_0900_ai_ci"),
        ("text", None, "a collation that is not known"),
    ],
)
def test_another_order_is_refused(type_: str, collation: str | None, words: str) -> None:
    """L2: its ranges would hold other rows in files."""
    with pytest.raises(SinkRefused, match=words):
        check_order("lake.raw.t", [Column(name="k", type=type_, collation=collation)], ["k"])


@pytest.mark.parametrize("type_", ["bigint", "uuid", "bytea", "numeric(38,9)", "timestamp(3) with time zone"])
def test_the_order_of_other_keys_is_the_same(type_: str) -> None:
    """L2: and that of text by its bytes."""
    columns = [
        Column(name="k", type=type_),
        Column(name="v", type="numeric"),
        Column(name="c", type="text", collation="C"),
    ]
    check_order("lake.raw.t", columns, ["k", "c"])
