"""Java's regular expressions, compiled for Python's matcher, which can be stopped when it takes too long.

Python tries the ways to match in much the same order, if it reads the pattern as Java does. Where it reads something
else, as of `[a-z&&[^y]]`, it does not say so: such a pattern is refused here.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

CATEGORIES = frozenset(
    (
        *("C", "Cc", "Cf", "Cn", "Co", "Cs", "L", "Ll", "Lm", "Lo", "Lt", "Lu", "M", "Mc", "Me", "Mn", "N", "Nd", "Nl"),
        *("No", "P", "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "S", "Sc", "Sk", "Sm", "So", "Z", "Zl", "Zp", "Zs"),
    )
)
r"""Unicode's categories of characters, as in `\p{Lu}` and `\p{IsLu}`."""

ASCII_CLASSES = {
    "ASCII": r"\x00-\x7f",
    "Alnum": "a-zA-Z0-9",
    "Alpha": "a-zA-Z",
    "Blank": r" \t",
    "Cntrl": r"\x00-\x1f\x7f",
    "Digit": "0-9",
    "Graph": "!-~",
    "Lower": "a-z",
    "Print": " -~",
    "Punct": r"!-/:-@\[-`{-~",
    "Space": r" \t-\r",
    "Upper": "A-Z",
    "XDigit": "0-9a-fA-F",
}
r"""POSIX's classes of characters, as in `\p{Lower}`."""

_MAX_COMPILED = 1000


def build_compiler() -> Callable[[str, str], re.Pattern[str]]:
    """Return a function that compiles one of Java's patterns for Python, to match one text.

    It raises ValueError for a pattern that only Java can read. It goes to Spark's workers by value, as it is made here:
    they need not have this package.
    """
    compiled: dict[tuple[str, str], re.Pattern[str]] = {}
    categories, ascii_classes, max_compiled = CATEGORIES, ASCII_CLASSES, _MAX_COMPILED
    token = re.compile(r"\\([pP])(?:\{(\w+)\}|(\w))|\\.|(\(\?<)(?=[a-zA-Z])|(\[\^?\]?)|(\])|(&&)|.", re.DOTALL)

    def list_members(name: str, characters: str) -> set[str]:
        """Return those of some characters that have a property."""
        short = name.removeprefix("Is")
        if short in categories:
            return {c for c in characters if unicodedata.category(c).startswith(short)}
        if name in ascii_classes:
            return set(re.findall(f"[{ascii_classes[name]}]", characters))
        raise ValueError(name)

    def spell(pattern: str, characters: str) -> str:
        r"""Return a pattern as Python writes it, with those of the characters that it means in place of `\p{...}`."""
        parts, in_class = [], False
        for part in token.finditer(pattern):
            sign, long, short, group, opening, closing, both = part.groups()
            if in_class and (opening or both):
                raise ValueError(part[0])
            if sign:
                members = list_members(long or short, characters)
                members = members if sign == "p" else set(characters) - members
                written = "".join(map(re.escape, sorted(members))) or chr(0x10FFFF)  # which is no character
                parts.append(written if in_class else f"[{written}]")
            else:
                parts.append("(?P<" if group and not in_class else part[0])
            in_class = (in_class or bool(opening)) and not closing
        return "".join(parts)

    def compile_pattern(pattern: str, text: str) -> re.Pattern[str]:
        others = "" if text.isascii() else "".join(sorted({*text} - {*ascii_only}))
        if (pattern, others) not in compiled:
            if len(compiled) >= max_compiled:
                compiled.clear()
            try:
                compiled[pattern, others] = re.compile(spell(pattern, ascii_only + others), re.ASCII)
            except (re.error, ValueError, RecursionError, OverflowError):
                raise ValueError(f"there is no limit of time for the pattern {pattern}; simplify it") from None
        return compiled[pattern, others]

    ascii_only = "".join(map(chr, range(128)))
    return compile_pattern


def is_readable(pattern: str) -> bool:
    """Return whether Python can read a regular expression, as most of Java's.

    >>> [is_readable(pattern) for pattern in (r"(?<all>[\\p{Lu}-]+)", r"[a-z&&[^y]]", r"\\G")]
    [True, False, False]
    """
    try:
        build_compiler()(pattern, "")
    except ValueError:
        return False
    return True
