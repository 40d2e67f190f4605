"""Character sets of MySQL: by which codec of Python's, or which table, text in the log is decoded."""

import codecs
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

BYTES = "binary"
CODECS: Mapping[str, str] = {
    "ucs2": "utf-16-be",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
    "sjis": "shift_jis",
    "gbk": "gbk",
    "gb2312": "gb2312",
    "euckr": "cp949",
}
"""Python's names of those with several bytes for a character of which it understands every one as MySQL does."""
_OTHER = {"sjis": str.maketrans("\N{FULLWIDTH REVERSE SOLIDUS}", "\\")}
"""Characters that are others to MySQL than to Python."""
UTF8 = frozenset({"utf8mb4", "utf8mb3", "utf8"})


@dataclass(frozen=True, kw_only=True)
class Charset:
    """One character set as the server has it."""

    name: str
    longest: int
    """Most bytes of a character."""
    table: str = ""
    """The characters of its 256 bytes, U+FFFE for one that is none; empty where one byte does not make a character."""

    @property
    def known(self) -> bool:
        """Whether its texts can be understood."""
        return self.name in UTF8 or self.name == BYTES or self.name in CODECS or len(self.table) == 256

    def decoder(self) -> Callable[[bytes], str]:
        """Return what makes text of bytes."""
        if self.name in UTF8:
            return bytes.decode
        if self.table:
            letters = self.table
            return lambda raw: codecs.charmap_decode(raw, "strict", letters)[0]
        codec, other = CODECS[self.name], _OTHER.get(self.name, {})
        return lambda raw: raw.decode(codec).translate(other)


def charsets(ask: Callable[[str], list[tuple[Any, ...]]]) -> dict[int, Charset]:
    """Return the server's character sets by the numbers of their collations."""
    found = ask(_COLLATIONS)
    names = {str(name): int(longest) for _, name, longest in found}
    single = [name for name, longest in names.items() if longest == 1 and name != BYTES]
    row = ask("SELECT " + ", ".join(f"CONVERT(_{name} X'{_EVERY_BYTE}' USING utf8mb4)" for name in single))[0]
    tables = dict(zip(single, map(_of_bytes, row), strict=True))
    made = {name: Charset(name=name, longest=longest, table=tables.get(name, "")) for name, longest in names.items()}
    return {int(number): made[str(name)] for number, name, _ in found}


def _of_bytes(shown: str) -> str:
    """Return a table of 256 characters; the server shows a byte that is none as ``?``, or as U+FFFD."""
    return "".join(_NONE if letter in "?\ufffd" and byte != ord("?") else letter for byte, letter in enumerate(shown))


_NONE = "\ufffe"
_EVERY_BYTE = bytes(range(256)).hex()
_COLLATIONS = (
    "SELECT c.ID, c.CHARACTER_SET_NAME, s.MAXLEN FROM information_schema.COLLATIONS c"
    " JOIN information_schema.CHARACTER_SETS s USING (CHARACTER_SET_NAME)"
)
