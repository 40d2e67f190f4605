"""What a statement that is in the log as text means for one table."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from airflow_provider_backpressure.connectors.mysql.binlog.event_stream import Statement
from airflow_provider_backpressure.connectors.mysql.identifiers import TableName

_SKIPPED = r"/\*(?!!).*?\*/|/\*!\d*|\*/|--(?=\s|$)[^\n]*|#[^\n]*"
"""Comments; of those that a server of some version executes, their marks alone."""
_QUOTED = r"`(?:[^`]|``)*`|'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\""
_PLAIN_QUOTED = r"`(?:[^`]|``)*`|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\""
"""The same under NO_BACKSLASH_ESCAPES."""
_TOKENS = tuple(
    re.compile(rf"(?P<token>{quoted})|(?:{_SKIPPED})|(?P<word>[\w$@]+|\S)", re.DOTALL)
    for quoted in (_QUOTED, _PLAIN_QUOTED)
)
_UNDECODED = "\ufffd"
_ROWS = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "WITH", "CALL", "DO", "SELECT"})
"""Statements that change rows, or call a function that does. By a trigger, a view, a function or a cascade they may do
so in a table that they do not name, of any database."""
_TABLE_WORDS = frozenset({"DROP", "RENAME", "CREATE", "ALTER"})
_HARMLESS = re.compile(
    r"(ADD (?!PRIMARY|FOREIGN|CONSTRAINT|PARTITION)|DROP (INDEX|KEY|CHECK)|ALTER INDEX|RENAME (INDEX|KEY)"
    r"|(DIS|EN)ABLE KEYS)\b"
)
"""Parts of ALTER TABLE after which every row has what it had before in the columns that it had."""
_DROPPED_INDEX = re.compile(r"DROP (?:INDEX|KEY) (?P<name>.+)", re.DOTALL)
_OPTION = rf"(FORCE|(ALGORITHM|LOCK|AUTO_INCREMENT|COMMENT|STATS_\w+)( =)? ({_QUOTED}|{_PLAIN_QUOTED}|\w+))"
_OPTIONS = re.compile(rf"{_OPTION}( {_OPTION})*", re.DOTALL)
"""The same of options, which other options may follow without a comma."""


class Effect(Enum):
    """What becomes of the table's rows."""

    NONE = "none"
    TRUNCATED = "truncated"
    """All of them are gone."""
    DEFINED = "defined"
    """The table became another one, or no row of the log says what became of its rows."""
    WRITTEN = "written"
    """Rows may have been changed by the statement itself, which does not say which."""


@dataclass(frozen=True, kw_only=True)
class Followed:
    """A table whose log is read."""

    table: TableName
    folded: bool
    """Whether the server ignores case in the names of tables (``lower_case_table_names``)."""
    by_primary: bool
    """Whether rows are known by the primary key. By another, two rows may have one key while its index is away."""

    def is_truncated_by(self, named: TableName | None) -> bool:
        """Whether ``TRUNCATE`` of that table is of this one. Unlike a stop it acts, so it goes by the exact name."""
        if named is None or not self.folded:
            return named == self.table
        return tuple(map(lower, named.parts)) == tuple(map(lower, self.table.parts))

    def needs(self, index: str) -> bool:
        """Whether this may be the index of the key."""
        return not self.by_primary or _unquote(index).upper() == "PRIMARY"


def effect(statement: Statement, followed: Followed) -> Effect:
    """Return what a statement means for a table.

    A session's settings decide what ends a string. Where the readings differ, or the text is of another character set
    and may name the table, the table counts as defined otherwise: a stop is better than a change that is missed.
    """
    found = {_effect(_tokens(pattern, statement.text), statement.database, followed) for pattern in _TOKENS}
    (first, *others) = found
    if others or (_UNDECODED in statement.text and _may_define(statement, followed.table)):
        return Effect.DEFINED
    return first


def _may_define(statement: Statement, table: TableName) -> bool:
    """Whether a statement that could not be decoded as a whole may be about the table."""
    words = _tokens(_TOKENS[0], statement.text)
    named = not table.name.isascii() or table.name.casefold() in statement.text.casefold()
    return named and words[:1] != [] and words[0].upper() in (*_TABLE_WORDS, "TRUNCATE")


def _effect(tokens: list[str], database: str, followed: Followed) -> Effect:
    words, table = [token.upper() for token in tokens], followed.table
    first = words[0] if words else ""
    if first in _ROWS:
        return Effect.WRITTEN
    if first not in _TABLE_WORDS and first != "TRUNCATE":
        return Effect.NONE
    if first == "TRUNCATE":
        named = tokens[2:] if words[1:2] == ["TABLE"] else tokens[1:]
        if followed.is_truncated_by(_first(named, database)):
            return Effect.TRUNCATED
        # With letters whose lower case is not sure it may be this one.
        unsure = followed.folded and _is_named(named, database, table)
        return Effect.DEFINED if unsure else Effect.NONE
    if words[:2] == ["DROP", "INDEX"]:
        gone = followed.needs(tokens[2]) and _is_named(tokens[4:], database, table)
        return Effect.DEFINED if gone else Effect.NONE
    if words[1:2] in (["DATABASE"], ["SCHEMA"]):
        # What follows the name, as a semicolon before a comment does, is not looked at.
        database_name = next(iter(tokens[4:] if words[2:4] == ["IF", "EXISTS"] else tokens[2:]), "``")
        gone = first == "DROP" and table.database.casefold() == _unquote(database_name).casefold()
        return Effect.DEFINED if gone else Effect.NONE
    if words[:5] == ["CREATE", "TABLE", "IF", "NOT", "EXISTS"]:
        # It is logged though it does nothing: the table was there when the log began, and what ends it stops us.
        return Effect.NONE
    if words[:3] == ["CREATE", "TEMPORARY", "TABLE"]:
        # From here on a TRUNCATE of that session is of the temporary table, and its text does not show that.
        return Effect.DEFINED if _is_named(tokens[3:], database, table) else Effect.NONE
    if words[:2] == ["CREATE", "TABLE"]:
        return Effect.DEFINED if _is_named(tokens[2:], database, table) else Effect.NONE
    if words[1:2] not in (["TABLE"], ["TABLES"]) or _fold_case(table) not in map(
        _fold_case, _names(tokens[2:], database)
    ):
        return Effect.NONE
    return _parse_alter(tokens[2:], followed, database) if first == "ALTER" else Effect.DEFINED


def _parse_alter(tokens: list[str], followed: Followed, database: str) -> Effect:
    """Return what ALTER TABLE means, where the table is named in it."""
    if not _is_named(tokens, database, followed.table):
        others = {token.upper() for token in tokens} & {"RENAME", "EXCHANGE"}
        return Effect.DEFINED if others else Effect.NONE
    actions = _split(tokens[3 if tokens[1:2] == ["."] else 1 :])
    harmless = all(
        _OPTIONS.fullmatch(action) or (_HARMLESS.match(action) and "REFERENCES" not in action.split())
        for action in actions
    )
    dropped = [match["name"] for action in actions if (match := _DROPPED_INDEX.fullmatch(action))]
    harmless = harmless and not any(map(followed.needs, dropped))
    return Effect.NONE if harmless else Effect.DEFINED


def _split(tokens: list[str]) -> list[str]:
    """Return the parts between commas that are in no brackets, in capitals."""
    parts, depth = [""], 0
    for word in tokens:
        depth += (word == "(") - (word == ")")
        if word == "," and not depth:
            parts.append("")
        else:
            parts[-1] = f"{parts[-1]} {word.upper()}".strip()
    return parts


@lru_cache(maxsize=len(_TOKENS))
def _tokens(pattern: re.Pattern[str], text: str) -> list[str]:
    """Return the words of a statement, which many tables ask for one after the other. Nobody changes the list."""
    found = (match["token"] or match["word"] for match in pattern.finditer(text))
    return [token for token in found if token]


def _first(tokens: list[str], database: str) -> TableName | None:
    words = (token for token in tokens if token.upper() not in ("IF", "NOT", "EXISTS"))
    return next(_names(list(words), database), None)


def _is_named(tokens: list[str], database: str, table: TableName) -> bool:
    """Whether the first name is the table's, whatever its case: servers differ in that, and a stop is the safe side."""
    named = _first(tokens, database)
    return named is not None and _fold_case(named) == _fold_case(table)


def _names(tokens: list[str], database: str) -> Iterator[TableName]:
    """Yield whatever may be the name of a table."""
    for at, token in enumerate(tokens):
        # Double quotes are those of a name under ANSI_QUOTES.
        named = token[0] in '`"_$' or token[0].isalnum()
        if named and tokens[at + 1 : at + 2] != ["."]:
            qualified = tokens[at - 1] == "." and at >= 2
            owner = _unquote(tokens[at - 2]) if qualified else database
            try:
                yield TableName(database=owner, name=_unquote(token))
            except ValueError:
                continue


def _fold_case(name: TableName) -> tuple[str, ...]:
    """Return a name in which no letter differs that a server may take for another one's lower case."""
    return tuple(part.replace("\u0130", "i").casefold() for part in name.parts)


def lower(text: str) -> str:
    """Return a name in lower case, but for letters of which servers may have another one than Python, or none."""
    return "".join(small if each < "\u0500" and len(small := each.lower()) == 1 else each for each in text)


def _unquote(token: str) -> str:
    quote = token[0]
    return token[1:-1].replace(quote * 2, quote) if quote in '`"' and len(token) > 1 else token
