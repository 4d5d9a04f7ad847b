"""Where in the tokens of a query a text is matched with a pattern: by a function, or by an operator."""

from __future__ import annotations

from sqlglot.tokenizer_core import Token, TokenType

PATTERN_FUNCTIONS = frozenset(
    (
        *("regexp", "regexp_count", "regexp_extract", "regexp_extract_all", "regexp_instr", "regexp_like"),
        *("regexp_replace", "regexp_substr", "rlike", "split"),
    )
)
"""The functions of Spark whose first argument is a text, and whose second is a regular expression."""

LIKE_FUNCTIONS = frozenset(("like", "ilike"))
OPERATORS = frozenset(("rlike", "regexp", *LIKE_FUNCTIONS))
"""The operators between a text and a pattern."""


def find_operands(tokens: list[Token], place: int, name: str) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Return the first and last tokens of the text and of the pattern that are matched at a token, None if none are."""
    if place + 1 < len(tokens) and tokens[place + 1].token_type == TokenType.L_PAREN:
        is_function = name in PATTERN_FUNCTIONS | LIKE_FUNCTIONS
        arguments = _split_arguments(tokens, place + 1) if is_function else []
        if len(arguments) > 1 and (place == 0 or tokens[place - 1].token_type != TokenType.DOT):
            return arguments[0], arguments[1]
    if name in OPERATORS:
        return _find_subject(tokens, place), (place + 1, _find_pattern_end(tokens, place + 1))
    return None


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
