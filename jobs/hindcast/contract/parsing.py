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

from hindcast.common import bounded_files
from hindcast.contract import bounds
from hindcast.contract.types import PARSER_ERRORS, format_value

PREFIX = "SELECT "
"""What stands before an expression where it is parsed: positions in a tree are shifted by its length."""


class ExpressionError(ValueError):
    """An expression that does not parse, or that uses unknown or misplaced names: `found` and `fix`."""

    def __init__(self, found: str, fix: str) -> None:
        self.found, self.fix = found, fix
        super().__init__(found)


_KEYWORD_FUNCTIONS = ("CAST", "TRY_CAST", "EXTRACT", "TRIM", "SUBSTR", "SUBSTRING", "POSITION", "OVERLAY")
"""Functions whose arguments can stand between words: `trim(BOTH 'x' FROM a)`."""


class Verbatim(Spark):
    """Spark SQL in which each function keeps the name that it is called by."""

    class Parser(SparkParser):
        """Reads every call as a plain call, except functions with a grammar of their own."""

        FUNCTIONS: ClassVar[dict[str, Callable[..., exp.Expr]]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Callable[..., exp.Expr]]] = {
            name: SparkParser.FUNCTION_PARSERS[name] for name in _KEYWORD_FUNCTIONS
        }
        NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Callable[..., exp.Expr]]] = {
            name: SparkParser.NO_PAREN_FUNCTION_PARSERS[name] for name in ("CASE", "IF")
        }
        ARRAY_CONSTRUCTORS: ClassVar[dict[str, type[exp.Func]]] = {}


_DIALECT = Verbatim()


def tokenize(text: str) -> list[Token]:
    """Return the tokens of an expression with their positions in `text`; raise ExpressionError if it cannot be read.

    The text of a string is the one that Spark reads, its escapes resolved.
    """
    if len(text) > bounds.EXPRESSION + len(PREFIX):
        raise ExpressionError(f"an expression has more than {bounds.EXPRESSION:,} characters", SPLIT_FIX)
    return _tokenize(text)


def _tokenize(text: str) -> list[Token]:
    try:
        tokens = list(_DIALECT.tokenize(text))
    except PARSER_ERRORS as error:
        raise _build_parser_error(text, error) from None
    kinds = [token.token_type for token in tokens]
    for place, token in enumerate(tokens):
        if kinds[place] == TokenType.STRING:
            token.text = _unescape(text[token.start + 1 : token.end])
        elif TokenType.DOT in kinds[max(place - 1, 0) : place + 2] and _NAME.fullmatch(token.text):
            token.token_type = TokenType.VAR  # a name, as in `current_user.select`
        elif kinds[place] in SparkParser.TYPE_TOKENS and _is_call(kinds[place + 1 : place + 6]):
            token.token_type = TokenType.VAR  # the function: as a type it would be tried again in each bracket
    return tokens


def tokenize_resolved(text: str) -> list[Token]:
    """Return the tokens of a text that has been checked: guards make it longer than a user may write."""
    return _tokenize(text)


def tokenize_bounded(text: str, before: str = "") -> list[Token]:
    """Return the tokens of `before` and a text; raise ExpressionError for too many, or too deep brackets."""
    try:
        bounds.refuse_deep_brackets(text, "([{", ")]}", bounds.BRACKETS, "brackets")
    except bounded_files.ExcessError as error:
        raise ExpressionError(f"{format_value(text)} {error.found}", SPLIT_FIX) from None
    tokens = tokenize(before + text)
    if len(tokens) > bounds.TERMS:
        raise ExpressionError(f"{format_value(text)} has more than {bounds.TERMS:,} terms", SPLIT_FIX)
    return tokens


def _is_call(following: Sequence[TokenType]) -> bool:
    """Return whether a type's name is called as a function: date(at), but not decimal(8) or decimal(8, 2)."""
    number, comma, close = TokenType.NUMBER, TokenType.COMMA, TokenType.R_PAREN
    if following[:1] != [TokenType.L_PAREN]:
        return False
    return following[1:3] != [number, close] and following[1:5] != [number, comma, number, close]


ONE_EXPRESSION_FIX = "write one Spark SQL expression"


def _build_parser_error(text: str, error: Exception) -> ExpressionError:
    detail = f"{error}" if isinstance(error, sqlglot.errors.SqlglotError) else f"the parser fails ({error!r})"
    return ExpressionError(f"'{text}' does not parse: {detail}", ONE_EXPRESSION_FIX)


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
    """Return the tree of `SELECT <text>`; raise ExpressionError if it does not parse or exceeds bounds.py.

    The tree is shared: do not change it.
    """
    tree = _parse(tokenize_bounded(text, PREFIX), text)
    if _measure_depth(tree) > bounds.NESTED:
        raise ExpressionError(f"{format_value(text)} is nested too deeply", SPLIT_FIX)
    return tree


def _parse(tokens: list[Token], text: str) -> exp.Expr:
    try:
        trees = _DIALECT.parser().parse(tokens, PREFIX + text)
    except sqlglot.errors.ParseError as error:
        detail = error.errors[0]["description"].rstrip(".") if error.errors else str(error)
        detail = "an operand is missing" if detail.startswith("Required keyword") else detail
        raise ExpressionError(f"'{text}' does not parse: {detail}", ONE_EXPRESSION_FIX) from None
    except RecursionError:
        raise ExpressionError(f"{format_value(text)} is nested too deeply", SPLIT_FIX) from None
    except PARSER_ERRORS as error:
        raise _build_parser_error(text, error) from None
    if len(trees) != 1 or trees[0] is None:
        raise ExpressionError(f"'{text}' is more than one expression", f"{ONE_EXPRESSION_FIX} without AS")
    return trees[0]


SPLIT_FIX = "split it into several views, each derived from the previous one"


def parse_one(text: str) -> exp.Expr:
    """Return the tree of one expression; raise ExpressionError for no expression, several, or a query."""
    tree = parse(text)
    if not tree.expressions:
        raise ExpressionError(f"'{text}' is not an expression", ONE_EXPRESSION_FIX)
    clauses = {name for name, value in tree.args.items() if value}
    if not isinstance(tree, exp.Select) or clauses != {"expressions"} or len(tree.expressions) != 1:
        raise ExpressionError(f"'{text}' is more than one expression", f"{ONE_EXPRESSION_FIX} without AS")
    expression: exp.Expr = tree.expressions[0]
    if isinstance(expression, exp.Alias | exp.Aliases):
        raise ExpressionError(f"'{text}' is more than one expression", f"{ONE_EXPRESSION_FIX} without AS")
    if expression.find(exp.Query):
        raise ExpressionError(f"'{text}' contains a query", "join the table in the view instead")
    return expression


@lru_cache(maxsize=4096)
def parse_resolved(text: str) -> exp.Expr:
    """Return the tree of an expression from `resolve`, unbounded: guards make it larger than a user may write."""
    if _PLAIN_COLUMN.fullmatch(text):  # most of a large contract: the parser would take ten times as long
        table, column = text.split(".")
        return exp.column(column, table=table)
    expression: exp.Expr = _parse(_tokenize(PREFIX + text), text).expressions[0]
    return expression


_PLAIN_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\.[A-Za-z_][A-Za-z0-9_]*")


def format_tree(tree: exp.Expr) -> str:
    """Return a part of an expression as text, for messages and for evaluating constants in Spark."""
    return str(tree.sql(dialect=Verbatim, normalize_functions=False, comments=False))


def find_position(node: exp.Expr) -> tuple[int, int] | None:
    """Return the start and end of an identifier in the parsed text, None if they are not known."""
    start, end = node.meta.get("start"), node.meta.get("end")
    return None if start is None or end is None else (start - len(PREFIX), end + 1 - len(PREFIX))


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def write_column(path: Sequence[str]) -> str:
    """Return a column as Spark SQL, quoted where necessary: `orders.item`."""
    return ".".join(name if _NAME.fullmatch(name) else f"`{name.replace('`', '``')}`" for name in path)


def find_columns(text: str) -> list[list[str]]:
    """Return the path of each column that a resolved expression names: `[["orders", "item"]]`."""
    return [[part.name for part in column.parts] for column in parse_resolved(text).find_all(exp.Column)]


def _measure_depth(tree: exp.Expr) -> int:
    """Return the depth of a tree; a chain of one operator, such as `a + b + c`, counts as one step."""
    deepest, plan = 0, [(tree, 0)]
    while plan:
        node, depth = plan.pop()
        deepest = max(deepest, depth)
        chained = node.this if isinstance(node, _CHAIN_OPERATORS) else None
        plan += [(child, depth if child is chained else depth + 1) for child in node.iter_expressions()]
    return deepest


_CHAIN_OPERATORS = (exp.Connector, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.DPipe)
"""Operators that are written in long chains, which sqlglot walks without recursion."""

_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[01][0-7]{2}|.)", re.DOTALL)
_ESCAPE_CHARACTERS = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


def _unescape(written: str) -> str:
    """Return the text that Spark reads from the characters between the quotes of a string."""

    def replace(match: re.Match[str]) -> str:
        code = match[1]
        if len(code) == 1:
            return _ESCAPE_CHARACTERS.get(code, code)
        number = int(code, 8) if code[0].isdigit() else int(code[1:], 16)
        return chr(number) if number <= 0x10FFFF else match[0]

    return _ESCAPE.sub(replace, written)
