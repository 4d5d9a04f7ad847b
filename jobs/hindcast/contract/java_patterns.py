r"""Java's regular expressions, compiled for Python's matcher, which can be stopped when it takes too long.

Python tries the ways to match in much the same order, if it reads the pattern as Java does. Where it reads something
else, as of `[a-z&&[^y]]`, it does not say so. So only escapes and flags are taken that mean the same in both, or that
can be written so; any other pattern is refused here. Refused is `\b`, too: which characters beyond ASCII are parts of
words depends on Java's version.
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

CHARACTER_CLASSES = {
    "h": r" \t\xa0\u1680\u180e\u2000-\u200a\u202f\u205f\u3000",
    "v": r"\n\x0b\f\r\x85\u2028\u2029",
}
"""Java's escapes for horizontal and vertical spaces."""

_SAME_ESCAPES = frozenset("dDwWsStnrfa")
"""The letters after a backslash that mean the same in Python, with re.ASCII."""

_ANY, _END = r"[^\n\r\x85\u2028\u2029]", r"(?=\r\n\Z|[\r\x85\u2028\u2029]?\Z|(?<!\r)\n\Z)"
"""What `.` and `$` mean in Java: lines have several ends."""

_MAX_COMPILED = 1000
_TOKEN = re.compile(
    r"\\(?:(?P<sign>[pP])(?:\{(?P<long>\w+)\}|(?P<short>\w))"
    r"|0(?P<octal>[0-3]?[0-7]{1,2})|x\{(?P<point>[0-9a-fA-F]{1,6})\}|[xu](?P<hex>(?<=x)[0-9a-fA-F]{2}|[0-9a-fA-F]{4})"
    r"|(?P<group>[1-9])(?![0-9])|(?P<escape>.))"
    r"|(?P<named>\(\?<)(?=[a-zA-Z])|\(\?(?P<flags>[a-zA-Z-]+)(?P<scope>[:)])"
    r"|(?P<opening>\[\^?\]?)|(?P<closing>\])|(?P<both>&&)|.",
    re.DOTALL,
)


def build_compiler() -> Callable[[str, str], re.Pattern[str]]:
    """Return a function that compiles one of Java's patterns for Python, to match one text.

    It raises ValueError for a pattern that only Java can read. It goes to Spark's workers by value, as it is made here:
    they need not have this package.
    """
    compiled: dict[tuple[str, str], re.Pattern[str]] = {}
    categories, ascii_classes, max_compiled, token = CATEGORIES, ASCII_CLASSES, _MAX_COMPILED, _TOKEN
    character_classes, same, any_character, end = CHARACTER_CLASSES, _SAME_ESCAPES, _ANY, _END

    def list_members(name: str, characters: str) -> set[str]:
        """Return those of some characters that have a property."""
        short = name.removeprefix("Is")
        if short in categories:
            return {c for c in characters if unicodedata.category(c).startswith(short)}
        if name in ascii_classes:
            return set(re.findall(f"[{ascii_classes[name]}]", characters))
        raise ValueError(name)

    def spell_escape(part: re.Match[str], *, in_class: bool) -> str:
        """Return an escape, but of a property, as Python writes it."""
        octal, point, digits, group, escape = part.group("octal", "point", "hex", "group", "escape")
        if octal or point or digits:
            code = int(octal, 8) if octal else int(point or digits, 16)
            if 0xD800 <= code < 0xE000:  # two of them are one character in Java
                raise ValueError(part[0])
            return re.escape(chr(code))
        if escape in character_classes:
            return character_classes[escape] if in_class else f"[{character_classes[escape]}]"
        if escape == "e":
            return r"\x1b"
        if not in_class and (group or escape in ("A", "z", "Z")):
            return {"z": r"\Z", "Z": end}.get(escape, part[0])
        if escape in same or (escape and not (escape.isascii() and escape.isalnum())):
            return part[0]
        raise ValueError(part[0])

    def spell_property(part: re.Match[str], characters: str) -> str:
        r"""Return those of the characters that `\p{...}` means, for a class."""
        members = list_members(part["long"] or part["short"], characters)
        members = members if part["sign"] == "p" else set(characters) - members
        return "".join(map(re.escape, sorted(members))) or chr(0x10FFFF)  # which is no character

    def spell(pattern: str, characters: str) -> str:
        """Return a pattern as Python writes it, for a text that has only these characters."""
        tokens, parts, in_class, flags = [*token.finditer(pattern)], [], False, ""
        for number, part in enumerate(tokens):
            if in_class and (part["opening"] or part["both"]):
                raise ValueError(part[0])
            if in_class and (part["sign"] or part["escape"] in character_classes):
                before, after = tokens[max(number - 2, 0) : number], tokens[number + 1 : number + 3]
                if (before[-1][0] == "-" and before[0][0] not in ("[", "[^")) or (
                    [each[0] for each in after[:1]] == ["-"] and not after[-1]["closing"]
                ):
                    raise ValueError(part[0])  # a range from or to a class
            if part["sign"]:
                written = spell_property(part, characters)
                parts.append(written if in_class else f"[{written}]")
            elif part[0][0] == "\\":
                parts.append(spell_escape(part, in_class=in_class))
            elif in_class:
                parts.append(part[0])
            elif part["flags"]:
                if not ({*part["flags"]} <= {*"is"} and part["scope"] == ")" and number == 0) and part[0] != "(?i:":
                    raise ValueError(part[0])
                flags += part["flags"]
                parts.append(part[0])
            else:
                dot = "." if "s" in flags else any_character
                parts.append({"(?<": "(?P<", ".": dot, "$": end}.get(part[0], part[0]))
            in_class = (in_class or bool(part["opening"])) and not part["closing"]
        if "i" in flags and any(part["sign"] for part in tokens):  # which of them have a case depends on Java's version
            raise ValueError(pattern)
        return "".join(parts)

    def compile_pattern(pattern: str, text: str) -> re.Pattern[str]:
        has_property = r"\p" in pattern or r"\P" in pattern  # only then the text matters
        others = "".join(sorted({*text} - {*ascii_only})) if has_property and not text.isascii() else ""
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
