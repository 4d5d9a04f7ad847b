"""The sensitive columns of a contract, and those computed from them: no report and no log shows their values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from hindcast.contract.model import Contract
from hindcast.contract.parsing import find_columns
from hindcast.contract.shapes import Shape, column_expressions, list_shapes, second_key_columns
from hindcast.contract.view import View


def find_sensitive_columns(
    contract: Contract, marks: Mapping[str, frozenset[str]] | None = None
) -> dict[str, frozenset[str]]:
    """Return the sensitive columns of every table of a checked contract: those marked, and those computed from them.

    Those of inputs also by the marks of the pipelines that they come from, if the contract has these. `sensitive: true`
    marks all columns, keys too. A column of a view is sensitive if its expression uses one that is;
    a view can mark more columns, but unmark none. `marks`: what counts as marked by table (default: `list_marks`).
    """
    known, marked = list_shapes(contract), list_marks(contract) if marks is None else marks
    found: dict[str, frozenset[str]] = {}
    for name in known:
        derived = _find_derived_columns(contract.views[name], known, found) if name in contract.views else ()
        found[name] = frozenset([*marked[name], *derived])
    return found


def list_marks(contract: Contract) -> dict[str, frozenset[str]]:
    """Return by table the columns that the contract marks, and of inputs those that their own pipelines mark."""
    marks: dict[str, frozenset[str]] = {}
    for name, shape in list_shapes(contract).items():
        table = contract.topics.get(name) or contract.inputs.get(name) or contract.views[name]
        marked = shape.columns if table.sensitive is True else table.sensitive or ()
        marks[name] = frozenset([*marked, *contract.marks_of_others.get(name, ())])
    return marks


def has_sensitive_columns(contract: Contract, name: str) -> bool:
    """Return whether an error about a table can show a sensitive value: of the table itself, or of a view's inputs."""
    found, view = find_sensitive_columns(contract), contract.views.get(name)
    return any(found[table] for table in (name, *(view.inputs if view else ())))


def redact_message(contract: Contract, name: str, message: str) -> str:
    """Return a failure's message for a table, or only its error class if sensitive columns take part.

    `message`: from its start, where the class is; a value further on can look like one.

    >>> redact_message(contract, "orders", "[CAST_INVALID_INPUT] The value 'ann@x.org' ...")
    'CAST_INVALID_INPUT (hidden: the table has sensitive columns)'
    """
    if not has_sensitive_columns(contract, name):
        return message
    error_class = _ERROR_CLASS.match(message)
    return f"{error_class[1]} ({REDACTED})" if error_class else REDACTED


REDACTED = "hidden: the table has sensitive columns"
_ERROR_CLASS = re.compile(
    r"(?:An error occurred while calling [\w.$]+\.\s+: )?"
    r"(?:(?:[\w.$]+Exception: )?Job aborted due to stage failure: Task \d+ in stage [\d.]+ failed \d+ times?, "
    r"most recent failure: Lost task [\d.]+ in stage [\d.]+ \(TID \d+\) \([\w.: -]+\): )?"
    r"(?:[\w.$]+Exception: |\([\w.$]+Exception\) )?\[([A-Z][A-Z0-9_.]+)\]"
)


def _find_derived_columns(view: View, known: Mapping[str, Shape], found: Mapping[str, frozenset[str]]) -> Iterator[str]:
    """Yield the columns of a view that use a sensitive column of its inputs."""
    expressions = (*column_expressions(view, known).items(), *second_key_columns(view, known).items())
    for column, text in expressions:
        for parts in find_columns(text):
            if parts[0] in found and parts[1:] and parts[1] in found[parts[0]]:
                yield column
