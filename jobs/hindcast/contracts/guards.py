"""Guards around each making of a timestamp, written into an expression's text.

Spark takes the text "12:30" for that time of today. Where an expression makes a timestamp of a text, one without a date
is no timestamp here: a cast fails on it, try_cast gives null.

    cast(at AS timestamp)  ->  cast(if(rlike(cast(at AS string), '...'), cast(concat('no date: ', ...) ...), ...) ...)

Only what is written is guarded: a cast, or to_timestamp and its like without a format. Where Spark makes the cast by
itself, as in `hour(name)`, it is Spark's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlglot.tokenizer_core import Token, TokenType

from hindcast.contracts.moments import DATELESS, MAKERS, is_guarded
from hindcast.contracts.parsing import ExpressionError, parse_resolved, tokenize

_CASTS = ("cast", "try_cast")
_TYPES = ("timestamp", "timestamp_ltz")
_OPEN, _CLOSE = (TokenType.L_PAREN, TokenType.L_BRACKET), (TokenType.R_PAREN, TokenType.R_BRACKET)


def write_guards(text: str) -> str:
    """Return an expression in which a text without a date is no timestamp.

    ExpressionError where a timestamp is made in a way that is not understood here.
    """
    wanted = sum(is_guarded(node) for node in parse_resolved(text).walk())
    if not wanted:
        return text
    text = _write_casts(text)
    tokens = tokenize(text)
    calls: list[_Call] = []
    written = _write(text, tokens, 0, len(tokens), calls)
    if len(calls) != wanted:
        raise ExpressionError(f"'{text}' makes a timestamp in a way that is not understood", _MEND)
    return written


_MEND = "write cast(... AS timestamp)"


class _Call(NamedTuple):
    """A making of a timestamp: its name, and the places of its argument and of what closes it, among the tokens."""

    name: str
    start: int
    end: int
    close: int


def _write(text: str, tokens: Sequence[Token], first: int, last: int, calls: list[_Call]) -> str:
    """Return the text of some tokens, with guards; each call that is guarded is added to `calls`."""
    if first == last:
        return ""
    pieces, place, at = [], first, tokens[first].start
    while place < last:
        call = _find_call(tokens, place)
        if call is None:
            place += 1
            continue
        calls.append(call)
        argument = _write(text, tokens, call.start, call.end, calls)
        pieces += [text[at : tokens[place].start], _guard(call.name, argument)]
        place = call.close + 1
        at = tokens[call.close].end + 1
    return "".join([*pieces, text[at : tokens[last - 1].end + 1]])


def _guard(name: str, argument: str) -> str:
    """Return a making of a timestamp that fails on a text without a date; each cast is one of any type."""

    def make(what: str) -> str:
        return f"{name}({what} AS timestamp)" if name in _CASTS else f"{name}({what})"

    text = f"cast({argument} AS string)"
    wrong = make(f"concat('no date: ', {text})")
    outer = name if name in _CASTS else "cast"
    return f"{outer}(if(rlike({text}, '{DATELESS}'), {wrong}, {make(argument)}) AS timestamp)"


def _find_call(tokens: Sequence[Token], place: int) -> _Call | None:
    """Return the making of a timestamp that begins at a token."""
    name = tokens[place].text.lower()
    after_dot = place > 0 and tokens[place - 1].token_type == TokenType.DOT
    if after_dot or name not in (*_CASTS, *MAKERS) or place + 1 == len(tokens):
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
    """Return the place of the bracket that closes the one at a place, or that opens it."""
    depth, place, step = 0, bracket, 1 if tokens[bracket].token_type in _OPEN else -1
    while 0 <= place < len(tokens):
        kind = tokens[place].token_type
        depth += (kind in _OPEN) - (kind in _CLOSE)
        if depth == 0:
            return place
        place += step
    raise ExpressionError("a bracket stands alone", "write brackets in pairs")


def _find_outer(tokens: Sequence[Token], start: int, end: int, wanted: TokenType) -> list[int]:
    """Return the places of the tokens of a sort that stand in no bracket."""
    found, depth = [], 0
    for place in range(start, end):
        kind = tokens[place].token_type
        depth += (kind in _OPEN) - (kind in _CLOSE)
        if depth == 0 and kind == wanted:
            found.append(place)
    return found


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
    """Return where the operand of a `::` begins: a column, a call, what stands in brackets, a literal, another `::`."""
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
    raise ExpressionError(f"'{text}' makes a timestamp in a way that is not understood", _MEND)


_NO_NAME = frozenset(("and", "or", "not", "end", "then", "else", "when", "case", "in", "is", "like", "between", "div"))


def _is_name(token: Token) -> bool:
    plain = token.text.replace("_", "a").isalnum() and not token.text[:1].isdigit()
    quoted = token.token_type == TokenType.IDENTIFIER
    is_word = plain and token.token_type not in (TokenType.STRING, TokenType.NUMBER)
    return quoted or (is_word and token.text.lower() not in _NO_NAME)
