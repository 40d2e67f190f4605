"""The text of a Protobuf schema as declarations: messages, fields and enums by the names that it gives them.

Options that change no bytes are passed over, and so are services and extensions. What would change how bytes are read,
and is not known here, is refused.
"""

import ast
import re
from collections.abc import Collection
from dataclasses import dataclass, field

from airflow_provider_backpressure.exceptions import InvalidDeclaration

PROTO2, PROTO3 = "proto2", "proto3"
_EDITIONS = ("2023",)
_LEXER = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)|(?P<word>[A-Za-z_]\w*)
    |(?P<number>0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?f?)
    |(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|(?P<sign>[{}()\[\]<>;:,=.+\-/])""",
    re.ASCII | re.DOTALL | re.VERBOSE,
)
_OPEN, _CLOSE = frozenset("{[("), frozenset("}])")
_PRESENCE, _ENCODING = "features.field_presence", "features.message_encoding"


@dataclass(frozen=True, kw_only=True)
class FieldText:
    """A field as it is written."""

    name: str
    number: int
    type: str
    """Name of a scalar type, or of a message or an enum, as it is written."""
    label: str = ""
    """``optional``, ``required``, ``repeated``, or empty."""
    oneof: str = ""
    key: str = ""
    """Type of the keys of a map, whose values are of ``type``."""
    presence: str = ""
    """Of an edition: ``EXPLICIT``, ``IMPLICIT`` or ``LEGACY_REQUIRED`` where the field says it."""


@dataclass(kw_only=True)
class EnumText:
    """An enum as it is written."""

    name: str
    values: list[tuple[str, int]] = field(default_factory=list)


@dataclass(kw_only=True)
class MessageText:
    """A message as it is written."""

    name: str
    fields: list[FieldText] = field(default_factory=list)
    messages: "list[MessageText]" = field(default_factory=list)
    enums: list[EnumText] = field(default_factory=list)


@dataclass(kw_only=True)
class FileText:
    """A schema as it is written."""

    syntax: str = PROTO2
    """``proto2``, ``proto3``, or an edition's year."""
    package: str = ""
    imports: list[str] = field(default_factory=list)
    public: list[str] = field(default_factory=list)
    """The imports that those see too who import this file."""
    presence: str = ""
    """Of an edition: what fields are that do not say it themselves."""
    messages: list[MessageText] = field(default_factory=list)
    enums: list[EnumText] = field(default_factory=list)


def parse(text: str) -> FileText:
    """Return the declarations of a schema; :class:`InvalidDeclaration` names the line that cannot be read."""
    return _Parser(text).parse()


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str, int]] = []
        self._at = 0
        self._file = FileText()
        at, line = 0, 1
        while at < len(text):
            match = _LEXER.match(text, at)
            if match is None:
                raise InvalidDeclaration(f"This is no Protobuf schema: line {line} has {text[at]!r}.")
            kind = str(match.lastgroup)
            if kind != "space":
                self._tokens.append((kind, match[0], line))
            line += match[0].count("\n")
            at = match.end()
        self._tokens.append(("end", "", line))

    def parse(self) -> FileText:
        file = self._file
        if self._take("syntax") or self._take("edition"):
            file.syntax = self._read_syntax()
        if file.syntax not in (PROTO2, PROTO3, *_EDITIONS):
            raise InvalidDeclaration(f"The syntax {file.syntax} of a Protobuf schema is not known.")
        while self._kind != "end":
            self._statement()
        return file

    def _statement(self) -> None:
        file = self._file
        match self._word():
            case ";":
                pass
            case "package":
                file.package = self._name()
                self._expect(";")
            case "import":
                found = self._word() if self._text in ("public", "weak") else ""
                name = self._string()
                file.imports.append(name)
                if found == "public":
                    file.public.append(name)
                self._expect(";")
            case "option":
                options = self._option(";")
                file.presence = options.get(_PRESENCE, file.presence)
            case "message":
                file.messages.append(self._message())
            case "enum":
                file.enums.append(self._enum())
            case "service" | "extend":
                self._name()
                self._block()
            case _:
                self._at -= 1
                self._refuse()

    def _message(self) -> MessageText:
        message = MessageText(name=self._ident())
        self._expect("{")
        while not self._take("}"):
            match self._text:
                case ";":
                    self._word()
                case "message":
                    self._word()
                    message.messages.append(self._message())
                case "enum":
                    self._word()
                    message.enums.append(self._enum())
                case "extend":
                    self._word()
                    self._name()
                    self._block()
                case "reserved" | "extensions":
                    self._skip(";")
                case "option":
                    self._word()
                    self._option(";")
                case "oneof":
                    self._word()
                    self._oneof(message)
                case _:
                    message.fields.append(self._field())
        return message

    def _oneof(self, message: MessageText) -> None:
        name = self._ident()
        self._expect("{")
        while not self._take("}"):
            if self._take("option"):
                self._option(";")
            elif not self._take(";"):
                message.fields.append(self._field(name))

    def _field(self, oneof: str = "") -> FieldText:
        label = self._word() if not oneof and self._text in ("optional", "required", "repeated") else ""
        key = ""
        if self._text == "map" and self._tokens[self._at + 1][1] == "<":
            self._word()
            self._expect("<")
            key = self._ident()
            self._expect(",")
            type_ = self._name()
            self._expect(">")
        else:
            type_ = self._name()
        name = self._ident()
        if type_ == "group":
            raise InvalidDeclaration(f"The field {name} is a group, which cannot be read.")
        self._expect("=")
        number = self._integer()
        options: dict[str, str] = {}
        if self._take("["):
            options = self._options()
        self._expect(";")
        return FieldText(
            name=name,
            number=number,
            type=type_,
            label=label,
            oneof=oneof,
            key=key,
            presence=options.get(_PRESENCE, ""),
        )

    def _enum(self) -> EnumText:
        enum = EnumText(name=self._ident())
        self._expect("{")
        while not self._take("}"):
            if self._take(";"):
                continue
            if self._take("option"):
                self._option(";")
            elif self._text == "reserved" and self._tokens[self._at + 1][1] != "=":
                self._skip(";")
            else:
                name = self._ident()
                self._expect("=")
                sign = -1 if self._take("-") else 1
                enum.values.append((name, sign * self._integer()))
                if self._take("["):
                    self._options()
                self._expect(";")
        return enum

    def _options(self) -> dict[str, str]:
        """Return the options of a field or a value, up to the bracket behind them."""
        found = self._option(",]")
        while self._tokens[self._at - 1][1] == ",":
            found |= self._option(",]")
        return found

    def _option(self, ends: Collection[str]) -> dict[str, str]:
        """Return an option by its whole name, up to a sign of ``ends``; what its block sets by names within it."""
        name = "".join(self._skip("="))
        value = self._skip(ends)
        found = {name: "".join(value)}
        if value[0] == "{":
            pairs = zip(value, value[1:], value[2:], strict=False)
            found = {f"{name}.{key}": text for key, colon, text in pairs if colon == ":"}
        if found.get(_ENCODING) == "DELIMITED":
            raise InvalidDeclaration("Messages are written as groups (message_encoding), which cannot be read.")
        return found

    def _block(self) -> None:
        self._expect("{")
        self._skip("}")

    def _skip(self, ends: Collection[str]) -> list[str]:
        """Return the tokens up to a sign of ``ends`` that is in no bracket, and pass that."""
        found: list[str] = []
        depth = 0
        while depth or self._kind != "sign" or self._text not in ends:
            sign = self._text if self._kind == "sign" else ""
            depth += (sign in _OPEN and sign != "") - (sign in _CLOSE and sign != "")
            if depth < 0:
                self._refuse()
            found.append(self._word())
        self._word()
        if not found and "}" not in ends:
            self._at -= 1
            self._refuse()
        return found

    @property
    def _kind(self) -> str:
        return self._tokens[self._at][0]

    @property
    def _text(self) -> str:
        return self._tokens[self._at][1]

    def _word(self) -> str:
        if self._kind == "end":
            self._refuse()
        self._at += 1
        return self._tokens[self._at - 1][1]

    def _take(self, text: str) -> bool:
        found = self._text == text
        self._at += found
        return found

    def _expect(self, text: str) -> None:
        if not self._take(text):
            self._refuse()

    def _ident(self) -> str:
        if self._kind != "word":
            self._refuse()
        return self._word()

    def _name(self) -> str:
        """Return a name with its dots."""
        name = "." if self._take(".") else ""
        name += self._ident()
        while self._take("."):
            name += f".{self._ident()}"
        return name

    def _integer(self) -> int:
        text = self._text
        if self._kind != "number" or not re.fullmatch(r"0[xX][0-9a-fA-F]+|\d+", text):
            self._refuse()
        self._word()
        octal = len(text) > 1 and text[0] == "0" and text[1] in "01234567"
        return int(text, 8) if octal else int(text, 0)

    def _string(self) -> str:
        parts = []
        while self._kind == "text":
            parts.append(str(ast.literal_eval(self._word())))
        if not parts:
            self._refuse()
        return "".join(parts)

    def _read_syntax(self) -> str:
        self._expect("=")
        text = self._string()
        self._expect(";")
        return text

    def _refuse(self) -> None:
        _, text, line = self._tokens[self._at]
        raise InvalidDeclaration(
            f"This is no Protobuf schema: line {line} has {text!r} where it cannot be."
            if text
            else f"This is no Protobuf schema: it ends within a statement (line {line})."
        )
