"""Rows of changes as COPY reads them."""

from airflow_provider_backpressure.spark.change_rows import DELETE, KEPT, MOVE, UPSERT, change


def test_a_row_is_its_head_what_it_keeps_the_old_key_and_the_values():
    row = change(7, UPSERT, [b"1", None], [None])
    assert row == (
        b"\x00\x06"
        + b"\x00\x00\x00\x08"
        + (7).to_bytes(8, "big")
        + b"\x00\x00\x00\x02\x00\x01"
        + b"\xff\xff\xff\xff" * 2
        + b"\x00\x00\x00\x011"
        + b"\xff\xff\xff\xff"
    )


def test_kept_columns_are_an_array_of_their_numbers():
    row = change(1, MOVE, [b"2", KEPT, KEPT], [b"1"])
    array = (1, 0, 21, 2, 1)
    body = b"".join(number.to_bytes(4, "big") for number in array) + b"\0\0\0\2\0\1" + b"\0\0\0\2\0\2"
    assert len(body).to_bytes(4, "big") + body in row
    assert row.endswith(b"\x00\x00\x00\x012" + b"\xff\xff\xff\xff" * 2)


def test_a_delete_is_a_row_too():
    assert change(1, DELETE, [b"1", None], [None])[2 + 12 + 4 : 2 + 12 + 6] == b"\x00\x00"
