"""Spark SQL expressions as trees, without Spark. The text itself is what Spark gets: nothing is written from a tree.

sqlglot knows many dialects, and translates what it reads: `array(a)[1]` or `log(a)` may come out as something else.
`Verbatim` reads each function as it is called, so that a tree says what stands in the text and where.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import ClassVar

import sqlglot
from sqlglot import expressions as exp
from sqlglot.dialects.spark import Spark
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

from hindcast.contracts import bounds
from hindcast.contracts.types import shown

PREFIX = "SELECT "
"""What stands before an expression where it is parsed: positions in a tree are later by so much."""


class ExpressionError(ValueError):
    """An expression that does not parse, or that names what is not there or has no place there: `found` and `mend`."""

    def __init__(self, found: str, mend: str) -> None:
        self.found, self.mend = found, mend
        super().__init__(found)


_WORDED = ("CAST", "TRY_CAST", "EXTRACT", "TRIM", "SUBSTR", "SUBSTRING", "POSITION", "OVERLAY")
"""Functions whose arguments can stand between words: `trim(BOTH 'x' FROM a)`."""


class Verbatim(Spark):
    """Spark SQL, in which a function is what it is called."""

    class Parser(SparkParser):
        """Reads every call as a call, but for the functions that have a grammar of their own."""

        FUNCTIONS: ClassVar[dict[str, Callable[..., exp.Expr]]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Callable[..., exp.Expr]]] = {
            name: SparkParser.FUNCTION_PARSERS[name] for name in _WORDED
        }
        NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Callable[..., exp.Expr]]] = {
            name: SparkParser.NO_PAREN_FUNCTION_PARSERS[name] for name in ("CASE", "IF")
        }
        ARRAY_CONSTRUCTORS: ClassVar[dict[str, type[exp.Func]]] = {}


def tokenize(text: str) -> list[Token]:
    """Return the tokens of an expression, their positions those in `text`; ExpressionError if it has none.

    The text of a string is what Spark makes of it, escapes and all.
    """
    if len(text) > bounds.EXPRESSION + len(PREFIX):
        raise ExpressionError(f"an expression of more than {bounds.EXPRESSION:,} characters", SPLIT)
    return _tokenize(text)


def _tokenize(text: str) -> list[Token]:
    try:
        tokens = list(sqlglot.tokenize(text, read=Verbatim))
    except sqlglot.errors.SqlglotError as error:
        raise ExpressionError(f"'{text}' does not parse: {error}", ONE) from None
    kinds = [token.token_type for token in tokens]
    for place, token in enumerate(tokens):
        if kinds[place] == TokenType.STRING:
            token.text = _unescape(text[token.start + 1 : token.end])
        elif TokenType.DOT in kinds[max(place - 1, 0) : place + 2] and _NAME.fullmatch(token.text):
            token.token_type = TokenType.VAR  # a name, as in `current_user.select`
        elif kinds[place] in SparkParser.TYPE_TOKENS and _is_call(kinds[place + 1 : place + 6]):
            token.token_type = TokenType.VAR  # the function: as a type it would be tried anew in each bracket
    return tokens


def tokenize_bounded(text: str, before: str = "") -> list[Token]:
    """Return the tokens of a text, with those of what stands before it; ExpressionError for too many, or too deep."""
    try:
        bounds.refuse_deep_brackets(text, "([{", ")]}", bounds.BRACKETS, "brackets")
    except bounds.ExcessError as error:
        raise ExpressionError(f"{shown(text)} {error.found}", SPLIT) from None
    tokens = tokenize(before + text)
    if len(tokens) > bounds.TERMS:
        raise ExpressionError(f"{shown(text)} has more than {bounds.TERMS:,} terms", SPLIT)
    return tokens


def _is_call(following: Sequence[TokenType]) -> bool:
    """Whether a name of a type is a function's: date(at), but not decimal(8) or decimal(8, 2)."""
    number, comma, close = TokenType.NUMBER, TokenType.COMMA, TokenType.R_PAREN
    if following[:1] != [TokenType.L_PAREN]:
        return False
    return following[1:3] != [number, close] and following[1:5] != [number, comma, number, close]


ONE = "write one Spark SQL expression"


def strip_comments(text: str) -> str:
    """Return an expression without its comments and hints.

    >>> strip_comments("a -- the first\\n + b /* the second */")
    'a + b'
    """
    pieces: list[str] = []
    end = 0
    for token in tokenize(text):
        if token.start < end:  # the type of a number, as in 1L, which is a token of its own
            continue
        between = text[end : token.start]
        pieces.append(between if not between.strip() else " " if pieces else "")
        pieces.append(text[token.start : token.end + 1])
        end = token.end + 1
    return "".join(pieces).strip()


@lru_cache(maxsize=4096)
def parse(text: str) -> exp.Expr:
    """Return the tree of `SELECT <text>`, bounded (bounds.py); ExpressionError if there is none.

    The tree is shared: nobody changes it.
    """
    try:
        tree = _parse(tokenize_bounded(text, PREFIX), text)
        deep = _depth(tree) > bounds.NESTED
    except RecursionError:
        deep = True
    if deep:
        raise ExpressionError(f"{shown(text)} is nested too deeply", SPLIT)
    return tree


def _parse(tokens: list[Token], text: str) -> exp.Expr:
    try:
        trees = Verbatim().parser().parse(tokens, PREFIX + text)
    except sqlglot.errors.ParseError as error:
        detail = error.errors[0]["description"].rstrip(".") if error.errors else str(error)
        detail = "an operand is missing" if detail.startswith("Required keyword") else detail
        raise ExpressionError(f"'{text}' does not parse: {detail}", ONE) from None
    except sqlglot.errors.SqlglotError as error:
        raise ExpressionError(f"'{text}' does not parse: {error}", ONE) from None
    if len(trees) != 1 or trees[0] is None:
        raise ExpressionError(f"'{text}' is more than one expression", f"{ONE} without AS")
    return trees[0]


SPLIT = "write it in several views, each made of the one before"


def parse_one(text: str) -> exp.Expr:
    """Return the tree of one expression; ExpressionError if the text is none, or more than one, or a query."""
    tree = parse(text)
    if not tree.expressions:
        raise ExpressionError(f"'{text}' is no expression", ONE)
    clauses = {name for name, value in tree.args.items() if value}
    if not isinstance(tree, exp.Select) or clauses != {"expressions"} or len(tree.expressions) != 1:
        raise ExpressionError(f"'{text}' is more than one expression", f"{ONE} without AS")
    found: exp.Expr = tree.expressions[0]
    if isinstance(found, exp.Alias | exp.Aliases):
        raise ExpressionError(f"'{text}' is more than one expression", f"{ONE} without AS")
    if found.find(exp.Query):
        raise ExpressionError(f"'{text}' holds a query", "join the table in the view instead")
    return found


@lru_cache(maxsize=4096)
def parse_resolved(text: str) -> exp.Expr:
    """Return the tree of an expression that `resolve` gave: guards make it larger than what can be written."""
    found: exp.Expr = _parse(_tokenize(PREFIX + text), text).expressions[0]
    return found


def show(tree: exp.Expr) -> str:
    """Return a part of an expression as text: for messages, and to ask Spark what a constant is."""
    return str(tree.sql(dialect=Verbatim, normalize_functions=False, comments=False))


def find_position(node: exp.Expr) -> tuple[int, int] | None:
    """Return where an identifier stands in the text that was parsed: its first character, and the one after it."""
    start, end = node.meta.get("start"), node.meta.get("end")
    return None if start is None or end is None else (start - len(PREFIX), end + 1 - len(PREFIX))


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def write_column(path: Sequence[str]) -> str:
    """Return a column as Spark reads it, quoted where it must be: `orders.item`."""
    return ".".join(name if _NAME.fullmatch(name) else f"`{name.replace('`', '``')}`" for name in path)


def find_columns(text: str) -> list[list[str]]:
    """Return the path of each column that a resolved expression names: `[["orders", "item"]]`."""
    return [[part.name for part in column.parts] for column in parse_resolved(text).find_all(exp.Column)]


def _depth(tree: exp.Expr) -> int:
    """Return how many steps it is from the top of a tree to its last part; `a + b + c` and its like are one step."""
    deepest, todo = 0, [(tree, 0)]
    while todo:
        node, depth = todo.pop()
        deepest = max(deepest, depth)
        chained = node.this if isinstance(node, _CHAINED) else None
        todo += [(child, depth if child is chained else depth + 1) for child in node.iter_expressions()]
    return deepest


_CHAINED = (exp.Connector, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.DPipe)
"""What is written in long chains, and walked without recursion for each part."""

_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[01][0-7]{2}|.)", re.DOTALL)
_ESCAPED = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


def _unescape(written: str) -> str:
    """Return what Spark makes of the characters between the quotes of a string."""

    def one(match: re.Match[str]) -> str:
        code = match[1]
        if len(code) == 1:
            return _ESCAPED.get(code, code)
        number = int(code, 8) if code[0].isdigit() else int(code[1:], 16)
        return chr(number) if number <= 0x10FFFF else match[0]

    return _ESCAPE.sub(one, written)
