"""The table of :mod:`tests.types_mysql` as MariaDB has it: what differs, and the types that only MariaDB has."""

from collections.abc import Mapping

from tests import types_mysql as mysql
from tests.types_mysql import Values

_DOUBLES = mysql.COLUMNS["double_"][2]
_OTHER: Mapping[str, tuple[str, str, Values]] = {
    # It has no negative zero.
    "double_": (*mysql.COLUMNS["double_"][:2], [(said, "0" if shown == "-0" else shown) for said, shown in _DOUBLES]),
    # Text that is checked: it comes back as it was sent.
    "json_": (
        "json",
        "text",
        [
            ("'null'", "null"),
            ('\'{"b": [1, 2.5, "é\\\\"😀"], "a": {}}\'', '{"b": [1, 2.5, "é\\"😀"], "a": {}}'),
            ("'18446744073709551615'", "18446744073709551615"),
            ("'\"\\\\u0000\"'", '"\\u0000"'),
        ],
    ),
    "geometry_": (
        "geometry",
        "bytea",
        [
            ("ST_GeomFromText('POINT(1 2)')", "\\x0101000000000000000000f03f0000000000000040"),
            ("ST_GeomFromText('POINT(1 2)', 4326)", "\\x0101000020e6100000000000000000f03f0000000000000040"),
        ],
    ),
    "collection_": (
        "geometrycollection",
        "bytea",
        [("ST_GeomFromText('GEOMETRYCOLLECTION EMPTY')", "\\x010700000000000000")],
    ),
}
COLUMNS: Mapping[str, tuple[str, str, Values]] = {**mysql.COLUMNS, **_OTHER}
ONLY_HERE = {
    "uuid_": ("uuid", "'123e4567-e89b-12d3-a456-426655440000'", "123e4567-e89b-12d3-a456-426655440000"),
    "inet4_": ("inet4", "'192.0.2.1'", "192.0.2.1"),
    "inet6_": ("inet6", "'2001:db8::ff00:42:8329'", "2001:db8::ff00:42:8329"),
}
"""Types that MySQL does not have: what is said, and how MariaDB prints it."""
