"""The JSON of lenient mode, as Jackson reads it, written as standard JSON.

Comments, texts in single quotes, names without quotes, leading zeros, any character after a backslash, control
characters in texts; NaN and infinities, which the parser of `syntax` knows.
"""

from __future__ import annotations

import re
import unicodedata

_TOKENS = re.compile(
    r"""
    (?P<text>"[^"\\]*+(?:\\.[^"\\]*+)*+" | '[^'\\]*+(?:\\.[^'\\]*+)*+')
    | (?P<comment>/\*.*?\*/ | //[^\n\r]*+)
    | (?P<open>["'/].*+)
    | (?P<word>[^\s"'{}\[\],:/\\]++)
    """,
    re.VERBOSE | re.DOTALL,
)
_COLON = re.compile(r"(?:[ \t\n\r]++|/\*.*?\*/|//[^\n\r]*+)*+:", re.DOTALL)
_ESCAPED = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ZEROS = re.compile("^(-?)0+(?=[0-9])")
_NAME_CHARACTERS = {"Lu", "Ll", "Lt", "Lm", "Lo", "Sc", "Pc", "Nd", "Nl", "Mc", "Mn", "Cf"}


def to_standard_json(text: str) -> str:
    """Return a text with the same values; what is wrong with it stays wrong.

    >>> to_standard_json("{'it\\\\'s': 007, n: +Infinity} // done")
    '{"it\\'s": 7, "n": Infinity}  '
    """
    return _TOKENS.sub(_write_token, text)


def _write_token(token: re.Match[str]) -> str:
    match token.lastgroup:
        case "text":
            body = _ESCAPED.sub(_write_escape, token[0][1:-1])
            return f'"{body if token[0][0] == chr(34) else _escape_quotes(body)}"'
        case "comment":
            return " "
        case "open":
            return token[0]
    word = token[0]
    if _COLON.match(token.string, token.end()) and _is_name(word):
        return f'"{word}"'
    return {"-INF": "-Infinity", "+INF": "Infinity", "+Infinity": "Infinity"}.get(word) or _ZEROS.sub(r"\1", word)


def _write_escape(found: re.Match[str]) -> str:
    """Return an escape that JSON has, or the character; of half a character's number one that JSON lacks."""
    if found[1] == "u":
        return r"\x"
    return found[0] if found[1][0] in '"\\/bfnrtu' else found[1]


def _escape_quotes(body: str) -> str:
    return re.sub(r'(\\.)|"', lambda it: it[1] or '\\"', body, flags=re.DOTALL)


def _is_name(word: str) -> bool:
    return all(it in "@#*-+" or (unicodedata.category(it) in _NAME_CHARACTERS and it <= "\uffff") for it in word)
