"""Safe YAML as contracts and targets are written in it."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    _Base = yaml.SafeLoader
else:
    _Base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class PlainLoader(_Base):
    """Safe YAML where only `true` and `false` are booleans (YAML 1.2): `on:` stays the name it is."""


PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool" or first in "tTfF"]
    for first, resolvers in _Base.yaml_implicit_resolvers.items()
}


class OddValueError(Exception):
    """A value that does not fit its YAML tag: its node, what is wrong with it, and the fix."""

    def __init__(self, node: yaml.Node, problem: str = "", fix: str = "") -> None:
        self.node = node
        tag = _find_tag(node)
        if problem:
            self.problem, self.fix = problem, fix
        elif tag in _TAG_FIXES:
            kind, self.fix = _TAG_FIXES[tag]
            self.problem = f"is not a {kind}"
        else:
            self.problem, self.fix = f"is not supported: it is tagged !!{tag}", f"remove !!{tag}"
        super().__init__(node.value)


class ContractLoader(PlainLoader):
    """YAML whose values JSON can hold too."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        """Return the value that YAML constructs; raise OddValueError where that fails (`2026-02-30`, `!!int x`) and
        for what JSON does not have: whole numbers of more than 64 bits, bytes, sets; and for a timestamp of which YAML
        would cut digits. Also for numbers that people do not read as YAML does: octal ones (`010`), those with colons
        (`12:30`), and those of more digits than a double keeps.
        """
        tag = _find_tag(node)
        is_cut = tag == "timestamp" and re.search(r"\.[0-9]{7}", node.value) is not None
        if is_cut or tag in _NOT_IN_JSON or (tag in _TAG_FIXES and len(node.value) > _LONGEST_NUMBER):
            raise OddValueError(node)
        try:
            value = super().construct_object(node, deep=deep)
        except (ValueError, LookupError, AttributeError, ArithmeticError):
            raise OddValueError(node) from None
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise OddValueError(node)
        if _has_surprising_digits(node):
            raise OddValueError(node, *_describe_number(value))
        if isinstance(value, float) and math.isfinite(value) and _read_exactly(node) != Decimal(repr(value)):
            found = f"has more digits than a number keeps: it would be {value!r}"
            raise OddValueError(node, found, "write fewer digits, or a text")
        return value


MOMENT_FIX = "write for example 2026-01-31, or 2026-01-31T06:00:00Z; a second has at most six digits after the point"

_TAG_FIXES = {
    "timestamp": ("valid timestamp", MOMENT_FIX),
    "int": ("whole number", "write for example 10"),
    "float": ("number", "write for example 0.5"),
    "bool": ("boolean", "write true or false"),
}
"""What a value tagged in YAML must be, and the fix."""

_NOT_IN_JSON = ("binary", "omap", "pairs", "set")

_LONGEST_NUMBER = 100
"""The most characters of a number: YAML takes seconds to read `1:1:1:...`."""


def _find_tag(node: yaml.Node) -> str:
    return str(node.tag).rpartition(":")[2]


def _read_exactly(node: yaml.Node) -> Decimal:
    try:
        return Decimal(node.value)
    except ArithmeticError:
        raise OddValueError(node) from None


def _has_surprising_digits(node: yaml.Node) -> bool:
    is_number = _find_tag(node) in ("int", "float")
    return is_number and (":" in node.value or re.fullmatch(r"[-+]?0[0-9_]+", node.value) is not None)


def describe_misread_number(node: yaml.Node) -> tuple[str, str] | None:
    """Return what is wrong, and the fix, if a node is a number that people do not read as YAML 1.1 does (010 is 8)."""
    pattern = _PLAIN_NUMBERS.get(_find_tag(node))
    if pattern is None or pattern.fullmatch(node.value):
        return None
    found, fix = _describe_number(PlainLoader("").construct_document(node))
    return f"'{node.value}' {found}", f"{fix}; put text in quotes"


def _describe_number(value: object) -> tuple[str, str]:
    fix = f"write {value}, or the number that you mean in decimal digits, without leading zeros"
    return f"is the number {value} in YAML", fix


_PLAIN_NUMBERS = {
    "int": re.compile(r"[-+]?(0|[1-9][0-9]*)"),
    "float": re.compile(r"[-+]?([0-9]*\.?[0-9]*([eE][-+]?[0-9]+)?|\.(inf|nan))", re.IGNORECASE),
}
"""What is the same number in YAML 1.1, in YAML 1.2 and for people, by tag."""
