"""Deliberate wrong readings of rules, in mutations/*.yaml, and the statements of the library that they change.

A statement that a wrong reading changes is labelled with its rule, at the end of a line of it or on the line above:

    if now < since:  # rule: what begins at a cut is in the slice after it

The YAML has modules, rules and wrong readings, each with what is changed in the statement and into what. The statement
is taken as `ast.unparse` writes it, a compound one without its body: how the source is laid out does not matter.
With nothing to be changed the whole statement is replaced; {} stands for it as it was.
"""

from __future__ import annotations

import ast
import copy
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

HERE = Path(__file__).parent
ROOT = HERE.parent
_LABEL = re.compile(r"# rule: (.+)")
_BODIES = ("orelse", "handlers", "finalbody")


class Misreading(NamedTuple):
    """A wrong reading of a rule in a module, what is changed into what, and operations that must notice (or tests)."""

    reading: str
    module: str
    rule: str
    right: str
    wrong: str
    operations: tuple[str, ...] = ()


def load_misreadings(name: str = "*") -> list[Misreading]:
    """Return the wrong readings of mutations/NAME.yaml, or of all."""
    return [
        Misreading(reading, module, rule, right, wrong, tuple(operations))
        for path in sorted((HERE / "mutations").glob(f"{name}.yaml"))
        for module, rules in yaml.safe_load(path.read_text(encoding="utf-8")).items()
        for rule, readings in rules.items()
        for reading, (right, wrong, *operations) in readings.items()
    ]


def source_of(module: str) -> Path:
    """Return the file of a module of `hindcast`, or of a package of its own (`hindcast_conformance`)."""
    path = f"{module.replace('.', '/')}.py"
    return ROOT / "tools" / path if module.startswith("hindcast_") else ROOT / "jobs" / "hindcast" / path


def full_name(module: str) -> str:
    """Return the name by which a module of `source_of` is imported."""
    return module if module.startswith("hindcast_") else f"hindcast.{module}"


def list_labels(text: str, tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """Yield each label of a module's text with its statement in the parsed tree."""
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and (label := _LABEL.fullmatch(token.string)):
            line = token.start[0]
            if token.line.lstrip().startswith("#"):
                yield label[1], min((it for it in statements if it.lineno > line), key=lambda it: it.lineno)
            else:
                inside = (it for it in statements if it.lineno <= line <= _last_line(it))
                yield label[1], max(inside, key=lambda it: it.lineno)


def misread(wrong: Misreading) -> ast.Module:
    """Return the parsed module as the wrong reading has it; raise ValueError if it cannot be applied."""
    path = source_of(wrong.module)
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    found = [statement for label, statement in list_labels(text, tree) if label == wrong.rule]
    if len(found) != 1:
        raise ValueError(f"{path} has {len(found)} statements labelled '# rule: {wrong.rule}'; label one")
    instead = change_statement(found[0], wrong)
    for parent in ast.walk(tree):
        for name in ("body", *_BODIES):
            siblings = getattr(parent, name, None)
            if isinstance(siblings, list) and found[0] in siblings:
                place = siblings.index(found[0])
                siblings[place : place + 1] = instead
                return ast.fix_missing_locations(tree)
    raise AssertionError("a statement is in a body")


def change_statement(statement: ast.stmt, wrong: Misreading) -> list[ast.stmt]:
    """Return the statements in place of the labelled one."""
    if not wrong.right:
        return ast.parse(wrong.wrong.replace("{}", ast.unparse(statement))).body
    text = _unparse_head(statement)
    if text.count(wrong.right) != 1:
        where = f"{wrong.module}, '# rule: {wrong.rule}'"
        raise ValueError(
            f"{where} should have {wrong.right!r} once, and is {text!r}; correct what '{wrong.reading}' changes"
        )
    body = "\n    pass" if hasattr(statement, "body") else ""
    [changed] = ast.parse(text.replace(wrong.right, wrong.wrong) + body).body
    for name in ("body", *_BODIES):
        if hasattr(statement, name):
            setattr(changed, name, getattr(statement, name))
    return [changed]


def _unparse_head(node: ast.stmt) -> str:
    """Return a statement as `ast.unparse` writes it, a compound one without its body."""
    if not hasattr(node, "body"):
        return ast.unparse(node)
    head = copy.copy(node)
    head.body = [ast.Pass()]  # type: ignore[attr-defined]
    for name in _BODIES:
        if hasattr(head, name):
            setattr(head, name, [])
    return ast.unparse(head).removesuffix("\n    pass")


def _last_line(node: ast.stmt) -> int:
    """Return the last line of a statement, of a compound one the last before its body."""
    body = getattr(node, "body", None)
    return int(body[0].lineno - 1 if body else node.end_lineno or node.lineno)
