"""Guards around each conversion to a timestamp, written into an expression's text.

Spark reads the text "12:30" as that time of today. Where an expression converts a text to a timestamp, one without a
date is not a timestamp: a cast fails on it, try_cast gives null.

    cast(at AS timestamp)  ->  cast(if(rlike(cast(at AS string), '...'), cast(concat('no date: ', ...) ...), ...) ...)

Only explicit conversions are guarded: a cast, or to_timestamp and its like without a format. Casts that Spark adds, as
in `hour(name)`, are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlglot.tokenizer_core import Token, TokenType

from hindcast.contract.moments import DATELESS_PATTERN, TIMESTAMP_FUNCTIONS, is_guarded
from hindcast.contract.parsing import ExpressionError, parse_resolved, tokenize

_CASTS = ("cast", "try_cast")
_TYPES = ("timestamp", "timestamp_ltz")
_OPEN, _CLOSE = (TokenType.L_PAREN, TokenType.L_BRACKET), (TokenType.R_PAREN, TokenType.R_BRACKET)


def write_guards(text: str) -> str:
    """Return an expression in which a text without a date is not a timestamp.

    Raise ExpressionError for a conversion to a timestamp in an unsupported form.
    """
    count = sum(is_guarded(node) for node in parse_resolved(text).walk())
    if not count:
        return text
    text = _write_casts(text)
    tokens = tokenize(text)
    calls: list[_Call] = []
    written = _write_tokens(text, tokens, 0, len(tokens), calls)
    if len(calls) != count:
        raise ExpressionError(f"'{text}' makes a timestamp in an unsupported way", _CAST_FIX)
    return written


_CAST_FIX = "write cast(... AS timestamp)"


class _Call(NamedTuple):
    """A conversion to a timestamp: its name, and the token places of its argument and its closing bracket."""

    name: str
    start: int
    end: int
    close: int


def _write_tokens(text: str, tokens: Sequence[Token], first: int, last: int, calls: list[_Call]) -> str:
    """Return the text of some tokens with guards, and add each guarded call to `calls`."""
    if first == last:
        return ""
    pieces, place, at = [], first, tokens[first].start
    while place < last:
        call = _find_call(tokens, place)
        if call is None:
            place += 1
            continue
        calls.append(call)
        argument = _write_tokens(text, tokens, call.start, call.end, calls)
        pieces += [text[at : tokens[place].start], _write_guard(call.name, argument)]
        place = call.close + 1
        at = tokens[call.close].end + 1
    return "".join([*pieces, text[at : tokens[last - 1].end + 1]])


def _write_guard(name: str, argument: str) -> str:
    """Return a conversion to a timestamp that fails on a text without a date; the argument may have any type."""

    def convert(value: str) -> str:
        return f"{name}({value} AS timestamp)" if name in _CASTS else f"{name}({value})"

    text = f"cast({argument} AS string)"
    failing = convert(f"concat('no date: ', {text})")
    outer = name if name in _CASTS else "cast"
    return f"{outer}(if(rlike({text}, '{DATELESS_PATTERN}'), {failing}, {convert(argument)}) AS timestamp)"


def _find_call(tokens: Sequence[Token], place: int) -> _Call | None:
    """Return the conversion to a timestamp that begins at a token, None if none does."""
    name = tokens[place].text.lower()
    after_dot = place > 0 and tokens[place - 1].token_type == TokenType.DOT
    if after_dot or name not in (*_CASTS, *TIMESTAMP_FUNCTIONS) or place + 1 == len(tokens):
        return None
    if tokens[place].token_type == TokenType.STRING or tokens[place + 1].token_type != TokenType.L_PAREN:
        return None
    close = _find_partner(tokens, place + 1)
    start, end = place + 2, close
    if name in _CASTS:
        outer = _find_outer(tokens, start, close, TokenType.ALIAS)
        if not outer or outer[-1] + 2 != close or tokens[close - 1].text.lower() not in _TYPES:
            return None
        end = outer[-1]
    elif _find_outer(tokens, start, close, TokenType.COMMA):
        return None
    is_literal = end - start == 1 and tokens[start].token_type in (TokenType.STRING, TokenType.NUMBER)
    return None if is_literal or start == end else _Call(name, start, end, close)


def _find_partner(tokens: Sequence[Token], bracket: int) -> int:
    """Return the place of the bracket that closes or opens the one at a place; raise ExpressionError for none."""
    depth, place, step = 0, bracket, 1 if tokens[bracket].token_type in _OPEN else -1
    while 0 <= place < len(tokens):
        kind = tokens[place].token_type
        depth += (kind in _OPEN) - (kind in _CLOSE)
        if depth == 0:
            return place
        place += step
    raise ExpressionError("a bracket has no counterpart", "balance the brackets")


def _find_outer(tokens: Sequence[Token], start: int, end: int, kind: TokenType) -> list[int]:
    """Return the places of the tokens of a kind that are outside all brackets."""
    places, depth = [], 0
    for place in range(start, end):
        token_type = tokens[place].token_type
        depth += (token_type in _OPEN) - (token_type in _CLOSE)
        if depth == 0 and token_type == kind:
            places.append(place)
    return places


def _write_casts(text: str) -> str:
    """Return an expression with `at::timestamp` as `cast(at AS timestamp)`, where the operand is plain."""
    tokens = tokenize(text)
    edits: list[tuple[int, int, str]] = []
    for place, token in enumerate(tokens[:-1]):
        if token.token_type == TokenType.DCOLON and tokens[place + 1].text.lower() in _TYPES:
            start = tokens[_find_operand(tokens, place)].start
            edits += [(start, start, "cast("), (token.start, tokens[place + 1].end + 1, " AS timestamp)")]
    pieces, end = [], 0
    for first, last, written in sorted(edits):
        pieces += [text[end:first], written]
        end = last
    return "".join([*pieces, text[end:]])


def _find_operand(tokens: Sequence[Token], place: int) -> int:
    """Return the place where the operand of a `::` begins: a column, call, bracket, literal or another `::`."""
    start = place - 1
    while start >= 0:
        kind = tokens[start].token_type
        if kind in _CLOSE:
            start = _find_partner(tokens, start)
            if start > 0 and _is_name(tokens[start - 1]):
                start -= 1
            elif tokens[start].token_type == TokenType.L_BRACKET:
                start -= 1
                continue
        elif not _is_name(tokens[start]) and kind not in (TokenType.STRING, TokenType.NUMBER):
            break
        if start > 1 and tokens[start - 1].token_type in (TokenType.DOT, TokenType.DCOLON):
            start -= 2
            continue
        if start > 0 and tokens[start - 1].token_type in (TokenType.STRING, TokenType.VAR, TokenType.IDENTIFIER):
            break
        return start
    text = " ".join(token.text for token in tokens[: place + 2])
    raise ExpressionError(f"'{text}' makes a timestamp in an unsupported way", _CAST_FIX)


_NO_NAME = frozenset(("and", "or", "not", "end", "then", "else", "when", "case", "in", "is", "like", "between", "div"))


def _is_name(token: Token) -> bool:
    plain = token.text.replace("_", "a").isalnum() and not token.text[:1].isdigit()
    quoted = token.token_type == TokenType.IDENTIFIER
    is_word = plain and token.token_type not in (TokenType.STRING, TokenType.NUMBER)
    return quoted or (is_word and token.text.lower() not in _NO_NAME)
