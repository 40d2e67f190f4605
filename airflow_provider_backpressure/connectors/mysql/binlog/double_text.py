"""Floating-point numbers as MySQL prints them: the shortest digits that mean the number."""

from decimal import ROUND_HALF_EVEN, Context, Decimal

WIDTH = 22
"""Most characters of a number in a statement's result; digits that do not fit are rounded away."""
_PLAIN = 15
"""Most digits before the point of a number without an exponent."""


def double_text(number: float, most: int = WIDTH) -> str:
    """Return what ``CAST(number AS CHAR)`` gives, in so many characters."""
    if number == 0:
        return "-0" if str(number)[0] == "-" else "0"
    sign, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    assert isinstance(exponent, int), "MySQL has neither infinities nor NaN"
    text = "".join(map(str, digits))
    point, width = len(text) + exponent, most - sign
    minus = "-" * sign
    if _fits(len(text), point, width):
        return minus + _plain(text, point)
    return minus + _scientific(number, text, point - 1, width)


def _fits(length: int, point: int, width: int) -> bool:
    """Whether a number is printed without an exponent."""
    needed = length - point + 2 if point <= 0 else length + 1 if point < length else point
    return needed <= width and point >= 1 - _PLAIN and (point <= _PLAIN or length > point)


def _plain(text: str, point: int) -> str:
    if point <= 0:
        return "0." + "0" * -point + text
    if point < len(text):
        return f"{text[:point]}.{text[point:]}"
    return text + "0" * (point - len(text))


def _scientific(number: float, text: str, exponent: int, width: int) -> str:
    shown = str(abs(exponent))
    room = width - (exponent < 0) - 1 - len(shown) - (len(text) > 1)
    if room < len(text):
        short = Context(prec=room, rounding=ROUND_HALF_EVEN).create_decimal(Decimal(abs(number))).normalize()
        digits = short.as_tuple().digits
        text, exponent = "".join(map(str, digits)), short.adjusted()
    fraction = f".{text[1:]}" if len(text) > 1 else ""
    return f"{text[0]}{fraction}e{exponent}"
