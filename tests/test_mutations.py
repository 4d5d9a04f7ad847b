"""The wrong readings of `make mutate` are of the code as it is: each changes the statement that its rule labels."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import misreadings
from misreadings import ROOT, Misreading, change_statement, list_labels, load_misreadings, misread, source_of

PACKAGES = (ROOT / "jobs" / "hindcast", *sorted((ROOT / "tools").glob("hindcast_*")))


def labels_of(path: Path) -> list[tuple[str, ast.stmt]]:
    text = path.read_text(encoding="utf-8")
    return [*list_labels(text, ast.parse(text))] if "# rule: " in text else []


def test_each_label_is_of_one_statement_which_each_wrong_reading_of_its_rule_changes() -> None:
    labels = [(path, *label) for package in PACKAGES for path in package.rglob("*.py") for label in labels_of(path)]
    readings = load_misreadings()
    assert sorted(it[:2] for it in labels) == sorted({(source_of(wrong.module), wrong.rule) for wrong in readings})
    statements = {(path, rule): statement for path, rule, statement in labels}
    for wrong in readings:
        statement = statements[source_of(wrong.module), wrong.rule]
        assert [ast.unparse(it) for it in change_statement(statement, wrong)] != [ast.unparse(statement)], wrong


TEXT = """
def look_up(at, start):
    # rule: a version begins at its first moment
    if (
        at
        >= start
    ):
        return True
    found = 1  # rule: nothing is found
    return found  # rule: twice
    return found  # rule: twice
"""


@pytest.mark.parametrize(
    ("rule", "right", "wrong", "what"),
    [
        ("a version begins at its first moment", "at >= start", "at > start", "if at > start:\n        return True"),
        ("nothing is found", "", "pass\n{}", "pass\n    found = 1"),
        ("nothing is found", "2", "3", "should have '2' once, and is 'found = 1'"),
        ("everything is found", "", "pass", "0 statements labelled '# rule: everything is found'"),
        ("twice", "", "pass", "2 statements labelled '# rule: twice'"),
    ],
)
def test_a_statement_is_found_by_its_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str, right: str, wrong: str, what: str
) -> None:
    (tmp_path / "module.py").write_text(TEXT, encoding="utf-8")
    monkeypatch.setattr(misreadings, "source_of", lambda _: tmp_path / "module.py")
    try:
        found = ast.unparse(misread(Misreading("", "module", rule, right, wrong)))
    except ValueError as error:
        found = str(error)
    assert what in found
