"""Decimal numbers as MySQL packs them: nine digits in four bytes, what is left over in fewer."""

from functools import cache

_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
"""Bytes of so many digits."""
_Group = tuple[int, int, int]
"""Where digits that were packed together begin and end, and how many they are."""


def decimal_bytes(precision: int, scale: int) -> int:
    """Return how many bytes a number takes."""
    return _groups(precision, scale)[-1][1]


def decimal_text(raw: bytes, precision: int, scale: int) -> str:
    """Return the text of a number with all the digits of its scale."""
    sign = 1 << 8 * len(raw) - 1
    packed = int.from_bytes(raw, "big") ^ sign
    negative = packed & sign
    data = (packed ^ (2 * sign - 1) if negative else packed).to_bytes(len(raw), "big")
    digits = "".join(
        [f"{int.from_bytes(data[start:end], 'big'):0{number}d}" for start, end, number in _groups(precision, scale)]
    )
    whole = digits[: precision - scale].lstrip("0") or "0"
    return f"{'-' if negative else ''}{whole}{'.' if scale else ''}{digits[precision - scale :]}"


@cache
def _groups(precision: int, scale: int) -> list[_Group]:
    """Return how digits were packed: a remainder comes first before the point, and last after it."""
    before, after = precision - scale, scale
    numbers = [before % 9, *[9] * (before // 9), *[9] * (after // 9), after % 9]
    groups, at = [], 0
    for number in numbers:
        if number:
            groups.append((at, at + _BYTES[number], number))
            at += _BYTES[number]
    return groups
