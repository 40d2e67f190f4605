"""A table with every type of MySQL's manual, and rows with what is hard about each: as it is said, and as it arrives.

What arrives is what PostgreSQL prints for it, written down by hand: an oracle that shares nothing with the product.
"""

from collections.abc import Mapping, Sequence

Values = Sequence[tuple[str, str]]

EMOJI = "😀 𐍈 é \\ \" '' ; -- /* {} %s"
SAID = "'" + EMOJI.replace("\\", "\\\\") + "'"
SHOWN = EMOJI.replace("''", "'")
LONG = "long " * 20000
BYTES = "X'00FF5C270A22'"
BYTES_SHOWN = "\\x00ff5c270a22"

COLUMNS: Mapping[str, tuple[str, str, Values]] = {
    "tinyint_": ("tinyint", "smallint", [("-128", "-128"), ("127", "127")]),
    "tinyint_u": ("tinyint unsigned", "smallint", [("0", "0"), ("255", "255")]),
    "tinyint_1": ("tinyint(1)", "smallint", [("0", "0"), ("1", "1"), ("-7", "-7")]),
    "smallint_": ("smallint", "smallint", [("-32768", "-32768"), ("32767", "32767")]),
    "smallint_u": ("smallint unsigned", "integer", [("65535", "65535")]),
    "mediumint_": ("mediumint", "integer", [("-8388608", "-8388608"), ("8388607", "8388607")]),
    "mediumint_u": ("mediumint unsigned", "integer", [("16777215", "16777215")]),
    "int_": ("int", "integer", [("-2147483648", "-2147483648"), ("2147483647", "2147483647")]),
    "int_u": ("int unsigned", "bigint", [("4294967295", "4294967295")]),
    "int_zero": ("int(8) unsigned zerofill", "bigint", [("42", "42"), ("0", "0")]),
    "bigint_": (
        "bigint",
        "bigint",
        [("-9223372036854775808", "-9223372036854775808"), ("9223372036854775807", "9223372036854775807")],
    ),
    "bigint_u": ("bigint unsigned", "numeric(20,0)", [("18446744073709551615", "18446744073709551615"), ("0", "0")]),
    "decimal_15_2": (
        "decimal(15,2)",
        "numeric(15,2)",
        [("-0.01", "-0.01"), ("9999999999999.99", "9999999999999.99"), ("0", "0.00")],
    ),
    "decimal_38": ("decimal(38,0)", "numeric(38,0)", [("9" * 38, "9" * 38), ("-" + "9" * 38, "-" + "9" * 38)]),
    "decimal_65": (
        "decimal(65,30)",
        "numeric(65,30)",
        [("9" * 35 + "." + "9" * 30, "9" * 35 + "." + "9" * 30), ("-0." + "0" * 29 + "1", "-0." + "0" * 29 + "1")],
    ),
    "decimal_u": ("decimal(10,3) unsigned zerofill", "numeric(10,3)", [("1.5", "1.500")]),
    "float_": (
        "float",
        "real",
        [
            ("0.1", "0.1"),
            ("16777217", "1.6777216e+07"),
            ("3.4028234663852886e38", "3.4028235e+38"),
            ("1.401298464324817e-45", "1e-45"),
            ("-1.17549435e-38", "-1.1754944e-38"),
            ("123456.789", "123456.79"),
        ],
    ),
    "double_": (
        "double",
        "double precision",
        [
            ("0.1e0", "0.1"),
            ("1.7976931348623157e308", "1.7976931348623157e+308"),
            ("2.2250738585072014e-308", "2.2250738585072014e-308"),
            ("0.1e0 + 0.2e0", "0.30000000000000004"),
            ("9007199254740993", "9.007199254740992e+15"),
            ("-0e0", "-0"),
            ("-1.2345678901234568e-10", "-1.2345678901234568e-10"),
            ("-4.9406564584124654e-324", "-5e-324"),
        ],
    ),
    "double_10_2": ("double(10,2)", "double precision", [("12345678.91", "12345678.91")]),
    "bit_1": ("bit(1)", "bit(1)", [("b'1'", "1"), ("b'0'", "0")]),
    "bit_10": ("bit(10)", "bit(10)", [("b'1000000001'", "1000000001"), ("b'0'", "0000000000")]),
    "bit_64": ("bit(64)", "bit(64)", [("18446744073709551615", "1" * 64), ("1", "0" * 63 + "1")]),
    "year_": ("year", "smallint", [("1901", "1901"), ("2155", "2155"), ("'0000'", "0")]),
    "date_": ("date", "date", [("'1000-01-01'", "1000-01-01"), ("'9999-12-31'", "9999-12-31")]),
    "time_": (
        "time",
        "interval",
        [("'-838:59:59'", "-838:59:59"), ("'838:59:59'", "838:59:59"), ("'00:00:00'", "00:00:00")],
    ),
    "time_6": (
        "time(6)",
        "interval",
        [("'-00:00:00.5'", "-00:00:00.5"), ("'12:00:00'", "12:00:00"), ("'838:59:58.999999'", "838:59:58.999999")],
    ),
    "datetime_": (
        "datetime",
        "timestamp without time zone",
        [("'1000-01-01 00:00:00'", "1000-01-01 00:00:00"), ("'9999-12-31 23:59:59'", "9999-12-31 23:59:59")],
    ),
    "datetime_6": (
        "datetime(6)",
        "timestamp without time zone",
        [("'9999-12-31 23:59:59.999999'", "9999-12-31 23:59:59.999999")],
    ),
    "timestamp_": (
        "timestamp",
        "timestamp with time zone",
        [("'1970-01-01 00:00:01'", "1970-01-01 00:00:01+00"), ("'2024-03-31 02:30:00'", "2024-03-31 02:30:00+00")],
    ),
    "timestamp_6": (
        "timestamp(6)",
        "timestamp with time zone",
        [("'2038-01-19 03:14:07.999999'", "2038-01-19 03:14:07.999999+00")],
    ),
    "char_": ("char(40)", "character varying(40)", [("''", ""), (SAID, SHOWN), ("' a  '", " a")]),
    "varchar_": (
        "varchar(40)",
        "character varying(40)",
        [("''", ""), (SAID, SHOWN), ("' a  '", " a  "), ("'tab\\tline\\nreturn\\r\\\\N'", "tab\tline\nreturn\r\\N")],
    ),
    "char_0": ("char(0)", "text", [("''", "")]),
    "latin1_": (
        "varchar(40) character set latin1",
        "character varying(40)",
        [("_utf8mb4'é \" ß €'", 'é " ß €')],
    ),
    "utf16_": ("varchar(40) character set utf16", "character varying(40)", [("_utf8mb4'é \" 😀'", 'é " 😀')]),
    "sjis_": ("varchar(40) character set sjis", "character varying(40)", [("_utf8mb4'日本語'", "日本語")]),
    "binary_collation": ("varchar(40) collate utf8mb4_bin", "character varying(40)", [("'Aa'", "Aa")]),
    "tinytext_": ("tinytext", "text", [(SAID, SHOWN)]),
    "text_": ("text", "text", [("''", ""), (SAID, SHOWN), ("'\"'", '"'), ("','", ","), ("'\\n'", "\n")]),
    "mediumtext_": ("mediumtext", "text", [("REPEAT('long ', 20000)", LONG)]),
    "longtext_": ("longtext character set latin1", "text", [("REPEAT(_latin1 X'E920', 10000)", "é " * 10000)]),
    "enum_": (
        "enum('a','with, comma','ü \"quoted\"')",
        "text",
        [("'with, comma'", "with, comma"), ("3", 'ü "quoted"')],
    ),
    "set_": ("set('a','b','c d')", "text", [("''", ""), ("'c d,a'", "a,c d")]),
    "binary_": ("binary(6)", "bytea", [(BYTES, BYTES_SHOWN), ("X'61'", "\\x610000000000")]),
    "varbinary_": ("varbinary(10)", "bytea", [("X''", "\\x"), (BYTES, BYTES_SHOWN)]),
    "tinyblob_": ("tinyblob", "bytea", [(BYTES, BYTES_SHOWN)]),
    "blob_": ("blob", "bytea", [("''", "\\x"), (BYTES, BYTES_SHOWN)]),
    "mediumblob_": ("mediumblob", "bytea", [("REPEAT(X'00FF', 40000)", "\\x" + "00ff" * 40000)]),
    "longblob_": ("longblob", "bytea", [(BYTES, BYTES_SHOWN)]),
    "json_": (
        "json",
        "json",
        [
            ("'null'", "null"),
            ('\'{"b": [1, 2.5, "é\\\\"😀"], "a": {}}\'', '{"a": {}, "b": [1, 2.5, "é\\"😀"]}'),
            ("'18446744073709551615'", "18446744073709551615"),
            ("'\"\\\\u0000\"'", '"\\u0000"'),
        ],
    ),
    "geometry_": (
        "geometry",
        "bytea",
        [
            ("ST_GeomFromText('POINT(1 2)')", "\\x0101000000000000000000f03f0000000000000040"),
            (
                "ST_GeomFromText('POINT(1 2)', 4326, 'axis-order=long-lat')",
                "\\x0101000020e6100000000000000000f03f0000000000000040",
            ),
        ],
    ),
    "point_": ("point", "bytea", [("POINT(1, 2)", "\\x0101000000000000000000f03f0000000000000040")]),
    "collection_": (
        "geometrycollection",
        "bytea",
        [("ST_GeomFromText('GEOMETRYCOLLECTION()')", "\\x010700000000000000")],
    ),
}
GENERATED = {
    "virtual_": ("bigint unsigned GENERATED ALWAYS AS (int_u * 2) VIRTUAL", "numeric(20,0)", "int_u", ["8589934590"]),
    "stored_": (
        "varchar(50) GENERATED ALWAYS AS (CONCAT(int_, '!')) STORED",
        "character varying(50)",
        "int_",
        ["-2147483648!", "2147483647!"],
    ),
}
"""Columns that MySQL makes of others: their type, and what arrives for each value of the other."""


def rows() -> int:
    """Return the number of rows: as many as a column has values, and one of NULLs."""
    return max(len(values) for _, _, values in COLUMNS.values()) + 1


def statements(table: str) -> list[str]:
    """Return what makes and fills the table."""
    columns = [f"{name} {type_} NULL" for name, (type_, _, _) in COLUMNS.items()]
    columns += [f"{name} {definition}" for name, (definition, *_) in GENERATED.items()]
    made = [f"CREATE TABLE {table} (id int PRIMARY KEY, {', '.join(columns)}) CHARACTER SET utf8mb4"]
    for row in range(rows()):
        said = [values[row][0] if row < len(values) else "NULL" for _, _, values in COLUMNS.values()]
        made.append(f"INSERT INTO {table} (id, {', '.join(COLUMNS)}) VALUES ({row}, {', '.join(said)})")
    return made


def expected() -> dict[str, tuple[str, list[str | None]]]:
    """Return each column's type in PostgreSQL and what it prints for the column, row by row."""
    found = {name: (type_, [shown for _, shown in values]) for name, (_, type_, values) in COLUMNS.items()}
    found |= {name: (type_, list(shown)) for name, (_, type_, _, shown) in GENERATED.items()}
    return {name: (type_, [*shown, *[None] * (rows() - len(shown))]) for name, (type_, shown) in found.items()}
