"""Time limits for the regular expressions in a gate's SQL, written into its text.

    note RLIKE '(a+)+$'  ->  hindcast_match_in_time(cast(note AS string), '(a+)+$') RLIKE '(a+)+$'

The function returns the text that it gets, or fails if matching takes too long (quality/time_limits.py). A pattern that
is written in the query and that no text can make slow is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import expressions as exp
from sqlglot.tokenizer_core import Token, TokenType

from hindcast.contract import functions, queries
from hindcast.contract.expectation import Expectation
from hindcast.contract.parsing import ExpressionError, format_tree, parse_one, strip_comments, tokenize
from hindcast.contract.patterns import may_be_slow

IN_TIME = "hindcast_match_in_time"
"""The function of a text and a pattern that a gate registers with Spark."""

_PATTERN_FUNCTIONS = frozenset(
    (
        *("regexp", "regexp_count", "regexp_extract", "regexp_extract_all", "regexp_instr", "regexp_like"),
        *("regexp_replace", "regexp_substr", "rlike", "split"),
    )
)
"""The functions of Spark whose first argument is a text, and whose second is a pattern."""


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
        if IN_TIME in written:
            limited[name] = written
    return limited


def write_time_limits(query: str) -> str:
    """Return a query over tables with a limit at each pattern that a text could make slow; it must have no comments.

    Raise ExpressionError for a pattern where no limit can be written.

    >>> write_time_limits("SELECT * FROM t WHERE a RLIKE '^a*$'")
    "SELECT * FROM t WHERE a RLIKE '^a*$'"
    """
    tree = queries.parse_query(query)
    matches = [node for node in tree.walk() if _find_pattern(node) is not None] if tree is not None else []
    if tree is None or not matches:
        return query
    for node in matches:
        if node.find_ancestor(exp.Lambda) is not None:
            raise ExpressionError(f"{format_tree(node)} may be slow and is in a function's ->", _SIMPLER_FIX)
    if tree.find(exp.Collate) or any(functions.find_name(call) == "collate" for call in tree.find_all(exp.Func)):
        raise ExpressionError(f"{format_tree(matches[0])} may be slow and stands beside COLLATE", _SIMPLER_FIX)
    tokens = tokenize(query)
    edits = [edit for place in range(len(tokens)) for edit in _list_edits(query, tokens, place)]
    written, end = "", 0
    for at, text in sorted(edits, key=lambda edit: edit[0]):
        written, end = written + query[end:at] + text, at
    written += query[end:]
    if queries.parse_query(written) != _limit_tree(tree):
        raise ExpressionError(f"{format_tree(matches[0])} may be slow, and is written in an unsupported way", _CALL_FIX)
    return written


_SIMPLER_FIX = "write the pattern without nested repetitions, such as '^[a-z]+$'"
_CALL_FIX = "write rlike(TEXT, 'PATTERN')"


def _find_pattern(node: exp.Expr) -> exp.Expr | None:
    """Return the pattern that a part of a query matches if it needs a limit, else None."""
    if isinstance(node, exp.RegexpLike):
        pattern = node.expression
    elif isinstance(node, exp.Anonymous) and node.name.lower() in _PATTERN_FUNCTIONS and len(node.expressions) > 1:
        pattern = node.expressions[1]
    else:
        return None
    is_quick = isinstance(pattern, exp.Literal) and pattern.is_string and not may_be_slow(pattern.this)
    return None if is_quick else pattern


def _limit_tree(tree: exp.Expr) -> exp.Expr:
    """Return the tree that a query has to have once the limits are written."""
    copy = tree.copy()
    for node in reversed([*copy.walk(bfs=False)]):  # inner ones first
        if (pattern := _find_pattern(node)) is not None:
            subject = node.this if isinstance(node, exp.RegexpLike) else node.expressions[0]
            call: exp.Expr = parse_one(f"{IN_TIME}(cast(a AS string), b)").copy()
            call.expressions[0].this.replace(subject.copy())
            call.expressions[1].replace(pattern.copy())
            subject.replace(call)
    return copy


def _list_edits(query: str, tokens: list[Token], place: int) -> Iterator[tuple[int, str]]:
    """Yield what to insert where, if a call or an operator that matches a pattern begins at a token."""
    name = tokens[place].text.lower()
    if tokens[place].token_type in (TokenType.STRING, TokenType.IDENTIFIER):
        return
    if name in _PATTERN_FUNCTIONS and place + 1 < len(tokens) and tokens[place + 1].token_type == TokenType.L_PAREN:
        arguments = _split_arguments(tokens, place + 1)
        if len(arguments) < 2 or (place > 0 and tokens[place - 1].token_type == TokenType.DOT):
            return
        (first, last), (start, end) = arguments[:2]
    elif name in ("rlike", "regexp"):
        first, last = _find_subject(tokens, place)
        start, end = place + 1, _find_pattern_end(tokens, place + 1)
    else:
        return
    pattern = tokens[start : end + 1]
    is_literal = len(pattern) == 1 and pattern[0].token_type == TokenType.STRING
    if last < first or not pattern or (is_literal and not may_be_slow(pattern[0].text)):
        return
    yield tokens[first].start, f"{IN_TIME}(cast("
    yield tokens[last].end + 1, f" AS string), {query[pattern[0].start : pattern[-1].end + 1]})"


def _split_arguments(tokens: list[Token], bracket: int) -> list[tuple[int, int]]:
    """Return the first and last token of each argument of a call whose opening bracket is at a place."""
    arguments, depth, first = [], 0, bracket + 1
    for place in range(bracket, len(tokens)):
        depth += _depth_step(tokens[place])
        if depth == 0 or (depth == 1 and tokens[place].token_type == TokenType.COMMA):
            arguments.append((first, place - 1))
            first = place + 1
        if depth == 0:
            break
    return [argument for argument in arguments if argument[0] <= argument[1]]


def _find_subject(tokens: list[Token], place: int) -> tuple[int, int]:
    """Return the first and last token of what stands before an operator; which it is, is checked by the tree."""
    last = place - 1
    if last >= 0 and tokens[last].text.lower() == "not":
        last -= 1
    first, depth = last, 0
    while first >= 0:
        depth -= _depth_step(tokens[first])
        if depth < 0 or (depth == 0 and _ends_subject(tokens[first])):
            break
        first -= 1
    return first + 1, last


def _find_pattern_end(tokens: list[Token], start: int) -> int:
    """Return the last token of the pattern that begins at a place after an operator; the tree checks it, too."""
    place, depth = start, 0
    while place < len(tokens):
        depth += _depth_step(tokens[place])
        if depth < 0 or (depth == 0 and _ends_pattern(tokens[place])):
            break
        place += 1
    return place - 1


def _ends_pattern(token: Token) -> bool:
    return token.token_type != TokenType.STRING and token.text.lower() in _AFTER_PATTERN


def _ends_subject(token: Token) -> bool:
    return token.token_type != TokenType.STRING and token.text.lower() in _BEFORE_SUBJECT


_BEFORE_SUBJECT = frozenset(
    (
        *(",", "and", "or", "not", "where", "on", "having", "select", "distinct"),
        *("when", "then", "else", "by", "between"),
    )
)


_AFTER_PATTERN = frozenset(
    (
        *(",", "=", "==", "<>", "!=", "<=>", "and", "or", "is", "in", "as", "when", "then", "else", "end"),
        *("group", "having", "order", "sort", "limit", "union", "intersect", "except", "minus", "window", "join", "on"),
        *("inner", "left", "right", "full", "cross", "where", "qualify", "asc", "desc"),
    )
)


def _depth_step(token: Token) -> int:
    """Return 1 for what opens brackets, or CASE, and -1 for what closes them."""
    if token.token_type in (TokenType.STRING, TokenType.IDENTIFIER):
        return 0
    text = token.text.lower()
    return (text in ("(", "[", "case")) - (text in (")", "]", "end"))
