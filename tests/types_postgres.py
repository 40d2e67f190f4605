"""A table with every type of PostgreSQL 18 that a column can have, and rows with what is hard about each.

:func:`define_types` makes the user's own types (in both databases), :func:`create_table` the table with its rows.
"""

from collections.abc import Mapping, Sequence

import psycopg
from psycopg import sql

SCHEMA = "typed"
"""Schema of the user's own types and of the extensions'."""

DEFINITIONS = f"""
    CREATE SCHEMA IF NOT EXISTS {SCHEMA};
    CREATE EXTENSION IF NOT EXISTS hstore SCHEMA {SCHEMA};
    CREATE EXTENSION IF NOT EXISTS citext SCHEMA {SCHEMA};
    CREATE TYPE {SCHEMA}.mood AS ENUM ('sad', 'ok', 'happy', 'with, comma', 'ünï "quoted"');
    CREATE DOMAIN {SCHEMA}.percent AS numeric(5, 2) CHECK (VALUE BETWEEN 0 AND 100);
    CREATE DOMAIN {SCHEMA}.moods AS {SCHEMA}.mood[];
    CREATE TYPE {SCHEMA}.pair AS (number integer, word text, feeling {SCHEMA}.mood, numbers integer[]);
    CREATE TYPE {SCHEMA}.floats AS RANGE (subtype = float8, multirange_type_name = {SCHEMA}.multifloats);
    CREATE TYPE {SCHEMA}."Odd ""Name""." AS ENUM ('a', 'b');
"""

LONG = "repeat('long ', 20000)"
"""Kept out of line, compressed."""
EMOJI = "'😀 𐍈 é \\ \" '' ; -- /* {} %s'"

COLUMNS: Mapping[str, tuple[str, Sequence[str]]] = {
    # numbers
    "int2_": ("smallint", ["0", "-32768", "32767"]),
    "int4_": ("integer", ["0", "-2147483648", "2147483647"]),
    "int8_": ("bigint", ["0", "-9223372036854775808", "9223372036854775807"]),
    "numeric_": (
        "numeric",
        ["0", "'NaN'", "'Infinity'", "'-Infinity'", "'1e131071'", "'-1e-16383'", "123456789.012345678900", "1.10"],
    ),
    "numeric_15_2": ("numeric(15,2)", ["0", "'NaN'", "9999999999999.99", "-0.01"]),
    "numeric_3_minus_2": ("numeric(3,-2)", ["0", "99900", "-12300"]),
    "float4_": ("real", ["0", "'-0'", "'NaN'", "'Infinity'", "'-Infinity'", "3.4028235e38", "1e-45", "0.1"]),
    "float8_": (
        "double precision",
        ["0", "'-0'", "'NaN'", "'Infinity'", "'-Infinity'", "1.7976931348623157e308", "5e-324", "0.1"],
    ),
    "money_": ("money", ["0", "'-92233720368547758.08'", "'92233720368547758.07'"]),
    "bool_": ("boolean", ["true", "false"]),
    # text
    "text_": ("text", ["''", EMOJI, "E'tab\\tnewline\\nreturn\\r\\\\N\\\\.'", LONG, "' blanks '"]),
    "varchar_": ("character varying", ["''", EMOJI, LONG]),
    "varchar_10": ("character varying(10)", ["''", "'😀😀😀😀😀😀😀😀😀😀'", "'ends   '"]),
    "char_5": ("character(5)", ["''", "'ab'", "'😀'"]),
    "bpchar_": ("bpchar", ["''", "'blanks   '"]),
    "char_1": ('"char"', ["'a'", "''", "'\\377'"]),
    "name_": ("name", ["''", "'x'", "repeat('é', 31)"]),
    "bytea_": ("bytea", ["''", "'\\x00ff5c0a'", f"convert_to({LONG}, 'UTF8')"]),
    # time
    "date_": ("date", ["'2000-01-01'", "'infinity'", "'-infinity'", "'4714-11-24 BC'", "'5874897-12-31'"]),
    "time_": ("time without time zone", ["'00:00'", "'24:00:00'", "'23:59:59.999999'"]),
    "time_3": ("time(3) without time zone", ["'12:34:56.789'"]),
    "timetz_": ("time with time zone", ["'00:00+00'", "'24:00:00-15:59:59'", "'23:59:59.999999+15:59:59'"]),
    "timestamp_": (
        "timestamp without time zone",
        ["'2000-01-01'", "'infinity'", "'-infinity'", "'4714-11-24 00:00 BC'", "'294276-12-31 23:59:59.999999'"],
    ),
    "timestamp_3": ("timestamp(3) without time zone", ["'2000-01-01 00:00:00.123'"]),
    "timestamptz_": (
        "timestamp with time zone",
        [
            "'2000-01-01 00:00+05:30'",
            "'infinity'",
            "'-infinity'",
            "'4714-11-24 00:00+00 BC'",
            "'294276-12-31 23:59:59.999999+00'",
        ],
    ),
    "interval_": (
        "interval",
        [
            "'0'",
            "'infinity'",
            "'-infinity'",
            "'-178000000 years'",
            "'1 mon -1 day 00:00:00.000001'",
            "'178000000 years'",
        ],
    ),
    "interval_day_to_second_3": ("interval day to second(3)", ["'1 day 02:03:04.005'"]),
    # identifiers, networks, documents
    "uuid_": ("uuid", ["'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"]),
    "inet_": ("inet", ["'0.0.0.0'", "'10.1.2.3/8'", "'::ffff:1.2.3.4/96'"]),
    "cidr_": ("cidr", ["'0.0.0.0/0'", "'2001:db8::/32'"]),
    "macaddr_": ("macaddr", ["'00:00:00:00:00:00'", "'ff:ff:ff:ff:ff:ff'"]),
    "macaddr8_": ("macaddr8", ["'ff:ff:ff:ff:ff:ff:ff:ff'"]),
    "json_": ("json", ["'null'", '\'{"a" :  1, "a": 2, "😀": "\\u0041"}\'']),
    "jsonb_": ("jsonb", ["'null'", '\'{"a": [1e400, true, null, {"b": "😀"}]}\'', "'\"\"'"]),
    "jsonpath_": ("jsonpath", ["'$.a[*] ? (@ > 1)'", "'lax $'"]),
    "xml_": ("xml", ["'<a b=\"1\">é😀</a>'", "'text only'", "''"]),
    "tsvector_": ("tsvector", ["''", "'a:1A fat:2B,4C cat:5'"]),
    # bits and shapes
    "bit_5": ("bit(5)", ["B'00000'", "B'10101'"]),
    "varbit_": ("bit varying", ["B''", "B'1010101010101'"]),
    "varbit_10": ("bit varying(10)", ["B''", "B'1'"]),
    "point_": ("point", ["'(0,0)'", "'(NaN,Infinity)'"]),
    "line_": ("line", ["'{1,-1,0}'"]),
    "lseg_": ("lseg", ["'[(0,0),(1,1)]'"]),
    "box_": ("box", ["'(1,1),(0,0)'"]),
    "path_": ("path", ["'[(0,0),(1,1),(2,0)]'", "'((0,0),(1,1),(2,0))'"]),
    "polygon_": ("polygon", ["'((0,0),(1,1),(2,0))'"]),
    "circle_": ("circle", ["'<(0,0),1e300>'"]),
    # ranges
    "int4range_": ("int4range", ["'empty'", "'[1,2147483646]'", "'(,)'"]),
    "int8range_": ("int8range", ["'empty'", "'[-9223372036854775808,)'"]),
    "numrange_": ("numrange", ["'empty'", "'(1.10,NaN]'"]),
    "tsrange_": ("tsrange", ["'empty'", "'[2000-01-01,infinity)'"]),
    "tstzrange_": ("tstzrange", ["'(,2000-01-01 00:00+05)'"]),
    "daterange_": ("daterange", ["'[2000-01-01,2000-01-02)'", "'empty'"]),
    "int4multirange_": ("int4multirange", ["'{}'", "'{[1,2),[5,)}'"]),
    "int8multirange_": ("int8multirange", ["'{[1,2)}'"]),
    "nummultirange_": ("nummultirange", ["'{(,1.10],[2,3)}'"]),
    "tsmultirange_": ("tsmultirange", ["'{[2000-01-01,infinity)}'"]),
    "tstzmultirange_": ("tstzmultirange", ["'{(,2000-01-01 00:00+05)}'"]),
    "datemultirange_": ("datemultirange", ["'{[2000-01-01,2000-01-02)}'"]),
    # the system's own
    "oid_": ("oid", ["0", "4294967295"]),
    "xid_": ("xid", ["'4294967295'"]),
    "xid8_": ("xid8", ["'18446744073709551615'"]),
    "cid_": ("cid", ["'4294967295'"]),
    "tid_": ("tid", ["'(4294967295,65535)'"]),
    "pg_lsn_": ("pg_lsn", ["'0/0'", "'FFFFFFFF/FFFFFFFF'"]),
    "pg_snapshot_": ("pg_snapshot", ["'10:20:10,14,15'"]),
    "txid_snapshot_": ("txid_snapshot", ["'10:20:10,14,15'"]),
    "refcursor_": ("refcursor", ["'a cursor'"]),
    # arrays
    "int4_array": ("integer[]", ["'{}'", "'{{1,NULL},{3,4}}'", "'[0:1]={1,2}'"]),
    "text_array": ("text[]", ["'{}'", "ARRAY['', NULL, 'NULL', 'a,b', '\"', '\\', '😀']"]),
    "varchar_array": ("character varying(10)[]", ["'{a,NULL}'"]),
    "numeric_array": ("numeric[]", ["'{NaN,1e1000,-0.10,NULL}'"]),
    "numeric_15_2_array": ("numeric(15,2)[]", ["'{NaN,1.10,NULL}'"]),
    "float8_array": ("double precision[]", ["'{NaN,Infinity,-0}'"]),
    "bytea_array": ("bytea[]", ["ARRAY['\\x00'::bytea, '', NULL]"]),
    "timestamptz_array": ("timestamp with time zone[]", ["'{infinity,\"0044-03-15 00:00+00 BC\",NULL}'"]),
    "interval_array": ("interval[]", ["'{\"1 mon -1 day\",NULL}'"]),
    "uuid_array": ("uuid[]", ["'{00000000-0000-0000-0000-000000000000,NULL}'"]),
    "jsonb_array": ("jsonb[]", ["ARRAY['{\"a\": null}'::jsonb, 'null', NULL]"]),
    "int4range_array": ("int4range[]", ["ARRAY['empty'::int4range, '[1,2)', NULL]"]),
    # the user's own
    "mood_": (f"{SCHEMA}.mood", ["'sad'", "'with, comma'", "'ünï \"quoted\"'"]),
    "mood_array": (f"{SCHEMA}.mood[]", ["'{}'", f"ARRAY['happy', NULL, 'with, comma']::{SCHEMA}.mood[]"]),
    "odd_name": (f'{SCHEMA}."Odd ""Name""."', ["'a'"]),
    "percent_": (f"{SCHEMA}.percent", ["0", "99.99"]),
    "percent_array": (f"{SCHEMA}.percent[]", ["'{0,99.99,NULL}'"]),
    "moods_": (f"{SCHEMA}.moods", ["'{sad,ok}'"]),
    "pair_": (f"{SCHEMA}.pair", ["ROW(1, '😀', 'happy', '{1,NULL}')", "ROW(NULL, NULL, NULL, NULL)"]),
    "pair_array": (f"{SCHEMA}.pair[]", [f"ARRAY[ROW(1, 'a,\"b', 'ok', '{{}}')::{SCHEMA}.pair, NULL]"]),
    "floats_": (f"{SCHEMA}.floats", ["'empty'", "'[-Infinity,1.5)'"]),
    "floats_multi": (f"{SCHEMA}.multifloats", ["'{[1,2),[3,4)}'"]),
    "hstore_": (f"{SCHEMA}.hstore", ["''", "'a=>1, \"😀\"=>NULL'"]),
    "citext_": (f"{SCHEMA}.citext", ["''", "'MiXed'"]),
}
"""Column -> its type as ``format_type`` spells it and the SQL of its values; every column may be NULL as well."""

GENERATED: Mapping[str, tuple[str, str]] = {
    "generated_stored": ("bigint", "GENERATED ALWAYS AS (id * 2) STORED"),
    "generated_virtual": ("text", "GENERATED ALWAYS AS ('row ' || id) VIRTUAL"),
}

REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "regclass",
            "regcollation",
            "regconfig",
            "regdictionary",
            "regnamespace",
            "regoper",
            "regoperator",
            "regproc",
            "regprocedure",
            "regrole",
            "regtype",
        ),
        "its values are numbers of this cluster's own catalogue",
    ),
    **dict.fromkeys(
        (
            "pg_brin_bloom_summary",
            "pg_brin_minmax_multi_summary",
            "pg_dependencies",
            "pg_mcv_list",
            "pg_ndistinct",
            "pg_node_tree",
        ),
        "it is PostgreSQL's own and takes no input",
    ),
    **dict.fromkeys(("aclitem", "gtsvector"), "it has no binary form"),
    **dict.fromkeys(
        ("int2vector", "oidvector", "tsquery"),
        "its empty value is sent in a form that PostgreSQL itself does not take in",
    ),
}
"""Types that no column can be carried with, and why."""


def row_count() -> int:
    """Return how many rows the table has: one of nothing but NULL, and as many as the longest list of values."""
    return 1 + max(len(values) for _, values in COLUMNS.values())


def define_types(connection: psycopg.Connection[tuple]) -> None:
    """Create the user's own types and the extensions in a database."""
    connection.execute(DEFINITIONS)


def create_table(connection: psycopg.Connection[tuple], table: str, *, rows: bool = True) -> None:
    """Create the table, named as in SQL, with a bigint key ``id`` and, if asked for, its rows."""
    lines = ["id bigint PRIMARY KEY"]
    lines += [f"{name} {type_}" for name, (type_, _) in COLUMNS.items()]
    lines += [f"{name} {type_} {rule}" for name, (type_, rule) in GENERATED.items()]
    connection.execute(f"CREATE TABLE {table} ({', '.join(lines)})")
    if rows:
        for statement in inserts(table):
            connection.execute(statement)


def inserts(table: str) -> list[sql.SQL]:
    """Return one INSERT for each row."""
    statements = [f"INSERT INTO {table} (id) VALUES (0)"]
    for place in range(row_count() - 1):
        given = {name: values[place] for name, (_, values) in COLUMNS.items() if place < len(values)}
        names, values = ", ".join(["id", *given]), ", ".join([str(place + 1), *given.values()])
        statements.append(f"INSERT INTO {table} ({names}) VALUES ({values})")
    return [sql.SQL(statement) for statement in statements]
