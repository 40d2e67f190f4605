"""What a statement that stands in the log as text means for one table."""

import re
from collections.abc import Iterator
from enum import Enum

from airflow_provider_backpressure.mysql.binlog.events import Statement
from airflow_provider_backpressure.mysql.names import TableName

_COMMENT = re.compile(r"/\*(?!!).*?\*/|/\*!\d*|\*/|--\s[^\n]*|#[^\n]*", re.DOTALL)
_TOKEN = re.compile(r"`(?:[^`]|``)*`|'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"|[\w$@]+|\S", re.DOTALL)
_ROWS = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "WITH"})
_TABLE_WORDS = frozenset({"DROP", "RENAME", "CREATE", "ALTER"})
_HARMLESS = re.compile(
    r"(ADD (?!PRIMARY|FOREIGN|CONSTRAINT|PARTITION)|DROP (INDEX|KEY|CHECK)|ALTER INDEX|RENAME (INDEX|KEY)|ALGORITHM"
    r"|LOCK|AUTO_INCREMENT|COMMENT|FORCE|STATS_\w+|(DIS|EN)ABLE KEYS)\b"
)
"""Parts of ALTER TABLE after which every row has what it had before in the columns that it had."""


class Effect(Enum):
    """What becomes of the table's rows."""

    NONE = "none"
    TRUNCATED = "truncated"
    """All of them are gone."""
    DEFINED = "defined"
    """The table became another one, or no row of the log says what became of its rows."""
    WRITTEN = "written"
    """Rows may have been changed by the statement itself, which does not say which."""


def effect(statement: Statement, table: TableName) -> Effect:
    """Return what a statement means for a table."""
    text = _COMMENT.sub(" ", statement.text)
    first = text.split(maxsplit=1)[0].upper() if text.strip() else ""
    if first in _ROWS:
        near = statement.database == table.database or table in set(_names(_tokens(text), statement.database))
        return Effect.WRITTEN if near else Effect.NONE
    if first not in _TABLE_WORDS and first != "TRUNCATE":
        return Effect.NONE
    tokens = _tokens(text)
    words = [token.upper() for token in tokens]
    if first == "TRUNCATE":
        named = tokens[2:] if words[1:2] == ["TABLE"] else tokens[1:]
        return Effect.TRUNCATED if _first(named, statement.database) == _folded(table) else Effect.NONE
    if words[1:2] in (["DATABASE"], ["SCHEMA"]):
        gone = first == "DROP" and table.database.casefold() == _unquoted(tokens[-1]).casefold()
        return Effect.DEFINED if gone else Effect.NONE
    if words[:5] == ["CREATE", "TABLE", "IF", "NOT", "EXISTS"]:
        # It is logged though it does nothing: the table was there when the log began, and what ends it stops us.
        return Effect.NONE
    if words[:2] == ["CREATE", "TABLE"]:
        return Effect.DEFINED if _first(tokens[2:], statement.database) == _folded(table) else Effect.NONE
    if words[1:2] != ["TABLE"] or _folded(table) not in set(_names(tokens[2:], statement.database)):
        return Effect.NONE
    return _altered(tokens[2:], table, statement.database) if first == "ALTER" else Effect.DEFINED


def _altered(tokens: list[str], table: TableName, database: str) -> Effect:
    """Return what ALTER TABLE means, where the table is named in it."""
    if _first(tokens, database) != _folded(table):
        others = {token.upper() for token in tokens} & {"RENAME", "EXCHANGE"}
        return Effect.DEFINED if others else Effect.NONE
    actions = _split(tokens[3 if tokens[1:2] == ["."] else 1 :])
    harmless = all(_HARMLESS.match(action) for action in actions)
    return Effect.NONE if harmless else Effect.DEFINED


def _split(tokens: list[str]) -> list[str]:
    """Return the parts between commas that stand in no brackets, in capitals."""
    parts, depth = [""], 0
    for word in tokens:
        depth += (word == "(") - (word == ")")
        if word == "," and not depth:
            parts.append("")
        else:
            parts[-1] = f"{parts[-1]} {word.upper()}".strip()
    return parts


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(text)


def _first(tokens: list[str], database: str) -> TableName | None:
    words = (token for token in tokens if token.upper() not in ("IF", "NOT", "EXISTS"))
    return next(_names(list(words), database), None)


def _names(tokens: list[str], database: str) -> Iterator[TableName]:
    """Yield whatever may be the name of a table, in small letters: servers differ in whether case matters."""
    for at, token in enumerate(tokens):
        named = token[0] == "`" or token[0].isalnum() or token[0] in "_$"
        if named and tokens[at + 1 : at + 2] != ["."]:
            qualified = tokens[at - 1] == "." and at >= 2
            owner = _unquoted(tokens[at - 2]) if qualified else database
            try:
                yield _folded(TableName(database=owner, name=_unquoted(token)))
            except ValueError:
                continue


def _folded(name: TableName) -> TableName:
    return TableName(database=name.database.casefold(), name=name.name.casefold())


def _unquoted(token: str) -> str:
    return token[1:-1].replace("``", "`") if token.startswith("`") else token
