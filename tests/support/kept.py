"""Where a secret is kept: in all that a database and a folder hold, also where it is encrypted or spelled otherwise."""

import base64
import html
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import psycopg
from cryptography.fernet import Fernet, InvalidToken
from psycopg import sql

_TOKEN = re.compile(r"gAAAA[A-Za-z0-9_=-]{60,}")
"""How everything begins that Airflow has encrypted."""
UNIQUE = 16
"""So many letters and digits stand nowhere by chance."""
_TABLES = """
    SELECT schemaname::text, tablename::text FROM pg_tables
    WHERE schemaname NOT IN ('pg_catalog', 'information_schema')
"""


@dataclass(frozen=True, kw_only=True)
class Search:
    """Looks for secrets. Each answer has their names by the place where they stand, and nothing of other places."""

    secrets: Mapping[str, str]
    """By name."""
    key: str
    """Airflow's, with which it encrypts connections and triggers."""

    def tables(self, link: "psycopg.Connection[Any]") -> dict[str, set[str]]:
        """Search every row of every table."""
        found = {}
        for schema, table in link.execute(_TABLES).fetchall():
            query = sql.SQL("SELECT t::text FROM {} t").format(sql.Identifier(schema, table))
            name = table if schema == "public" else f"{schema}.{table}"
            found[name] = self.within("\n".join(text for (text,) in link.execute(query)))
        return {name: names for name, names in found.items() if names}

    def files(self, folder: Path) -> dict[str, set[str]]:
        """Search every file below a folder."""
        found = {
            str(path.relative_to(folder)): self.within(path.read_bytes().decode(errors="replace"))
            for path in folder.rglob("*")
            if path.is_file()
        }
        return {name: names for name, names in found.items() if names}

    def within(self, text: str) -> set[str]:
        """Search a text, and what is encrypted in it."""
        texts = [text, *self._opened(text)]
        return {name for name, secret in self.secrets.items() if any(stands_in(secret, one) for one in texts)}

    def _opened(self, text: str) -> Iterator[str]:
        for token in _TOKEN.findall(text):
            try:
                yield Fernet(self.key).decrypt(token).decode(errors="replace")
            except InvalidToken:
                continue


def stands_in(secret: str, text: str | bytes) -> bool:
    """Whether a text holds a secret, however it is spelled."""
    told = text.decode(errors="replace") if isinstance(text, bytes) else text
    return any(each in told for each in spellings(secret))


@cache
def spellings(secret: str) -> frozenset[str]:
    """Return a secret as it is, and as addresses, JSON, Python, HTML and PostgreSQL's rows write it; each of them also
    in hexadecimal, as bytes are shown, and in base64 at each of the places that it may begin at.

    Of one with a long word in it that word too, which is found however often the rest was escaped.
    """
    word = max(re.findall("[A-Za-z0-9]+", secret), key=len, default="")
    texts = {
        secret,
        *(quote(secret, safe=safe) for safe in ("", "/")),
        quote_plus(secret),
        json.dumps(secret)[1:-1],
        repr(secret)[1:-1],
        html.escape(secret),
        secret.replace("\\", "\\\\").replace('"', '""'),
        *([word] if len(word) >= UNIQUE else []),
    }
    encoded = {each for text in texts for behind in range(3) for each in _in_base64(text.encode(), behind)}
    return frozenset({*texts, *(text.encode().hex() for text in texts), *encoded})


def _in_base64(secret: bytes, behind: int) -> Iterator[str]:
    """Yield the characters that depend on nothing but the secret, so many bytes behind the beginning of three."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield encode(bytes(behind) + secret).decode()[-(-behind * 8 // 6) : (behind + len(secret)) * 8 // 6]
