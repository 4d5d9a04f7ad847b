"""Time limits for the patterns in users' SQL, written into its text: regular expressions, and LIKE with many `%`.

    note RLIKE '(a+)+$'  ->  hindcast_match_in_time(cast(note AS string), '(a+)+$') RLIKE '(a+)+$'

The function returns the text that it gets, or fails if matching takes too long (bitemporal/pattern_limits.py). A
pattern that is written in the text and that no value can make slow is left as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

from sqlglot import expressions as exp
from sqlglot.tokenizer_core import Token, TokenType

from hindcast.contract import functions, queries
from hindcast.contract.expectation import Expectation
from hindcast.contract.java_patterns import is_readable
from hindcast.contract.match_tokens import LIKE_FUNCTIONS, OPERATORS, PATTERN_FUNCTIONS, find_operands
from hindcast.contract.moments import DATELESS_PATTERN
from hindcast.contract.parsing import (
    ExpressionError,
    format_tree,
    parse_one,
    parse_resolved,
    strip_comments,
    tokenize_resolved,
)
from hindcast.contract.patterns import may_be_slow, may_like_be_slow

IN_TIME, LIKE_IN_TIME = "hindcast_match_in_time", "hindcast_like_in_time"
"""The functions of a text and a pattern that are registered with Spark: for regular expressions, and for LIKE."""

_HIDDEN_PATTERNS = {"str_to_map": (1, 2), "parse_url": (2,), "try_parse_url": (2,)}
"""Functions with arguments that Spark reads as regular expressions although they look like plain texts."""

_ANY_PATTERN = re.compile(
    "|".join(sorted((*PATTERN_FUNCTIONS, *OPERATORS, *_HIDDEN_PATTERNS), key=len, reverse=True)), re.IGNORECASE
)


def limit_gate(gate: Expectation) -> dict[str, str]:
    """Return the parameters of a gate in SQL that need limits of time, each with its text as it has to be run.

    Raise ExpressionError for a pattern where no limit can be written.
    """
    limited = {}
    for name, given in gate.sql_parameters.items():
        text = strip_comments(given)
        if name == "row_condition":
            before, after = queries.wrap_condition("\0").split("\0")
            written = write_time_limits(f"{before}{text}{after}")[len(before) : -len(after)]
        else:
            batch = queries.BATCH
            while batch in text:
                batch += "_"
            query = write_time_limits(text.format(batch=batch))
            written = query.replace("{", "{{").replace("}", "}}").replace(batch, "{batch}")
        if IN_TIME in written or LIKE_IN_TIME in written:
            limited[name] = written
    return limited


def write_time_limits(query: str) -> str:
    """Return a query over tables with a limit at each pattern that a text could make slow; it must have no comments.

    Raise ExpressionError for a pattern where no limit can be written.

    >>> write_time_limits("SELECT * FROM t WHERE a RLIKE '^a*$'")
    "SELECT * FROM t WHERE a RLIKE '^a*$'"
    """
    tree = queries.parse_query(query)
    return query if tree is None else _write_limits(query, tree, queries.parse_query)


@lru_cache(maxsize=1024)
def limit_expression(text: str) -> str:
    """Return an expression from `resolve` with a limit at each pattern that a text could make slow.

    Raise ExpressionError for a pattern where no limit can be written.

    >>> limit_expression("orders.note LIKE 'a%'")
    "orders.note LIKE 'a%'"
    """
    if _ANY_PATTERN.search(text) is None:
        return text
    return _write_limits(text, parse_resolved(text), parse_resolved)


class _Match(NamedTuple):
    """A part of an expression that matches a text with a pattern that needs a limit."""

    subject: exp.Expr
    pattern: exp.Expr
    wrap: Callable[[str, str], str]


def _write_limits(text: str, tree: exp.Expr, parse: Callable[[str], exp.Expr | None]) -> str:
    matches = [(node, match) for node in tree.walk() if (match := _find_match(node)) is not None]
    if not matches:
        return text
    for node, match in matches:
        _refuse_unlimitable(node, match)
        if any(
            _find_match(part) for part in match.pattern.walk()
        ):  # each copy of a pattern would have copies of others
            raise ExpressionError(
                f"{format_tree(node)} may be slow and has a pattern made by another match", _APART_FIX
            )
    if tree.find(exp.Collate) or any(functions.find_name(call) == "collate" for call in tree.find_all(exp.Func)):
        raise ExpressionError(f"{format_tree(matches[0][0])} may be slow and stands beside COLLATE", SIMPLER_FIX)
    tokens = tokenize_resolved(text)
    edits = [edit for place in range(len(tokens)) for edit in _list_edits(text, tokens, place)]
    written, end = "", 0
    for at, inserted in sorted(edits, key=lambda edit: edit[0]):
        written, end = written + text[end:at] + inserted, at
    written += text[end:]
    if parse(written) != _limit_tree(tree):
        found = f"{format_tree(matches[0][0])} may be slow, and is written in an unsupported way"
        raise ExpressionError(found, _CALL_FIX)
    return written


SIMPLER_FIX = "write the pattern without nested repetitions, such as '^[a-z]+$'; of LIKE, with fewer %"
"""What to do about a pattern that may be slow."""
UNLIMITED = "may be slow, and has parts that are Java's alone, for which there is no limit"
"""What is wrong with a pattern that Python cannot read."""
_CALL_FIX = "write rlike(TEXT, 'PATTERN') or like(TEXT, 'PATTERN')"
_APART_FIX = "compute the text in an earlier view, and match the column here"


def _refuse_unlimitable(node: exp.Expr, match: _Match) -> None:
    """Raise ExpressionError for a match where a limit cannot be written, or would change what the expression means."""
    shown = format_tree(node)
    if node.find_ancestor(exp.Lambda) is not None:
        raise ExpressionError(f"{shown} may be slow and is in a function's ->", SIMPLER_FIX)
    if _is_hidden(node):
        raise ExpressionError(f"{shown} may be slow: Spark reads it as a regular expression", "write a plain text")
    if isinstance(node.parent, exp.Escape) or (_is_call(node, LIKE_FUNCTIONS) and len(node.expressions) > 2):
        raise ExpressionError(f"{shown} may be slow and has ESCAPE", r"write \\% for a percent sign, without ESCAPE")
    if isinstance(match.pattern, exp.Any | exp.All):
        fix = "write a LIKE '...' OR a LIKE '...', or AND, in place of ANY and ALL"
        raise ExpressionError(f"{shown} may be slow and is of several patterns", fix)
    if _is_regex(node) and isinstance(match.pattern, exp.Literal) and not is_readable(match.pattern.name):
        raise ExpressionError(f"{shown} {UNLIMITED}", SIMPLER_FIX)
    if _is_conditional(node) and not (_cannot_fail(match.subject) and _cannot_fail(match.pattern)):
        # The limit is evaluated for every row, also where the condition would have kept the text from being computed.
        raise ExpressionError(f"{shown} may be slow and is only evaluated on a condition", _APART_FIX)


def _find_match(node: exp.Expr) -> _Match | None:
    """Return what a part of an expression matches if it needs a limit, else None."""
    if isinstance(node, exp.RegexpLike | exp.Like | exp.ILike):
        subject, pattern = node.this, node.expression
    elif _is_call(node, PATTERN_FUNCTIONS | LIKE_FUNCTIONS) and len(node.expressions) > 1:
        subject, pattern = node.expressions[:2]
    elif _is_hidden(node):
        patterns = [node.expressions[n] for n in _HIDDEN_PATTERNS[node.name.lower()] if n < len(node.expressions)]
        slow = [pattern for pattern in patterns if not _is_quick(pattern, may_be_slow)]
        return _Match(node.expressions[0], slow[0], _wrap_regex) if slow else None
    else:
        return None
    slow_test = may_be_slow if _is_regex(node) else may_like_be_slow
    if isinstance(pattern, exp.Any | exp.All) and all(_is_quick(each, slow_test) for each in _list_patterns(pattern)):
        return None
    if _is_quick(pattern, slow_test):
        return None
    is_ilike = isinstance(node, exp.ILike) or _is_call(node, frozenset(("ilike",)))
    return _Match(subject, pattern, _wrap_regex if _is_regex(node) else _wrap_ilike if is_ilike else _wrap_like)


def _is_quick(pattern: exp.Expr, slow_test: Callable[[str], bool]) -> bool:
    if not isinstance(pattern, exp.Literal) or not pattern.is_string:
        return False
    return pattern.name == DATELESS_PATTERN or not slow_test(pattern.name)


def _list_patterns(several: exp.Any | exp.All) -> list[exp.Expr]:
    inner = several.this
    return list(inner.expressions) if isinstance(inner, exp.Tuple) else [inner.this] if inner else [several]


def _is_call(node: exp.Expr, names: frozenset[str]) -> bool:
    return isinstance(node, exp.Anonymous) and node.name.lower() in names


def _is_hidden(node: exp.Expr) -> bool:
    return isinstance(node, exp.Anonymous) and node.name.lower() in _HIDDEN_PATTERNS


def _is_regex(node: exp.Expr) -> bool:
    return isinstance(node, exp.RegexpLike) or _is_call(node, PATTERN_FUNCTIONS)


def _is_conditional(node: exp.Expr) -> bool:
    """Return whether a part of an expression stands where Spark evaluates it for some rows only."""
    parent = node.parent
    while parent is not None and not isinstance(parent, exp.Query):
        if isinstance(parent, exp.If | exp.Case) or _is_call(parent, _CONDITIONAL):
            return True
        parent = parent.parent
    return False


_CONDITIONAL = frozenset(("coalesce", "if", "iff", "ifnull", "nvl", "nvl2"))


def _cannot_fail(tree: exp.Expr) -> bool:
    return all(
        isinstance(node, _PLAIN_NODES) or _is_text_cast(node) or _is_call(node, _TOTAL_FUNCTIONS | PATTERN_FUNCTIONS)
        for node in tree.walk()
    )


def _is_text_cast(node: exp.Expr) -> bool:
    return isinstance(node, exp.Cast) and node.to.this in exp.DataType.TEXT_TYPES


_PLAIN_NODES = (exp.Column, exp.Identifier, exp.Literal, exp.DPipe, exp.Paren, exp.Null, exp.Trim, exp.DataType)
_TOTAL_FUNCTIONS = frozenset(
    ("coalesce", "concat", "concat_ws", "lower", "ltrim", "nvl", "replace", "rtrim", "substr", "substring", "upper")
)


def _wrap_regex(subject: str, pattern: str) -> str:
    return f"{IN_TIME}(cast({subject} AS string), {pattern})"


def _wrap_like(subject: str, pattern: str) -> str:
    return f"{LIKE_IN_TIME}(cast({subject} AS string), {pattern})"


def _wrap_ilike(subject: str, pattern: str) -> str:
    return f"{LIKE_IN_TIME}(lower(cast({subject} AS string)), lower({pattern}))"


def _limit_tree(tree: exp.Expr) -> exp.Expr:
    """Return the tree that a text has to have once the limits are written."""
    copy = tree.copy()
    for node in reversed([*copy.walk(bfs=False)]):  # inner ones first
        if (match := _find_match(node)) is not None:
            call = parse_one(match.wrap("hindcast_subject", "hindcast_pattern")).copy()
            for column in [*call.find_all(exp.Column)]:
                column.replace((match.subject if column.name == "hindcast_subject" else match.pattern).copy())
            match.subject.replace(call)
    return copy


def _list_edits(query: str, tokens: list[Token], place: int) -> Iterator[tuple[int, str]]:
    """Yield what to insert where, if a call or an operator that matches a pattern begins at a token."""
    name = tokens[place].text.lower()
    if tokens[place].token_type in (TokenType.STRING, TokenType.IDENTIFIER):
        return
    if (places := find_operands(tokens, place, name)) is None:
        return
    (first, last), (start, end) = places
    slow_test = may_like_be_slow if name in LIKE_FUNCTIONS else may_be_slow
    pattern = tokens[start : end + 1]
    is_literal = len(pattern) == 1 and pattern[0].token_type == TokenType.STRING
    if last < first or not pattern:
        return
    if is_literal and (pattern[0].text == DATELESS_PATTERN or not slow_test(pattern[0].text)):
        return
    wrap = {"like": _wrap_like, "ilike": _wrap_ilike}.get(name, _wrap_regex)
    text = query[pattern[0].start : pattern[-1].end + 1]
    before, after = wrap("\0", text).split("\0")
    yield tokens[first].start, before
    yield tokens[last].end + 1, after
