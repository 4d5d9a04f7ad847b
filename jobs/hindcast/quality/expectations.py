"""What expectations there are, Great Expectations' and our own rules, and how a gate becomes one."""

from __future__ import annotations

import html
import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any

from hindcast.contracts import Contract, Expectation, shapes
from hindcast.contracts.gates import complaint
from hindcast.contracts.parsing import strip_comments
from hindcast.contracts.shapes import PERIODS
from hindcast.contracts.views import Complaint
from hindcast.errors import nearest, show_briefly


def looks_at(gate: Expectation) -> str:
    """Which rows a gate looks at (`Candidate.rows`): a rule of ours says so itself, unless the whole table is asked."""
    rule: str = getattr(implementation(gate.type), "about", gate.rows)
    return gate.rows if gate.rows == "table" and rule in ("change", "near", "keys") else rule


def implementation(expectation: str) -> Any:
    """The class of an expectation of Great Expectations' or ours; None if there is none of that name."""
    registry = imported().expectations.registry
    known = registry.list_registered_expectation_implementations()
    return registry.get_expectation_impl(expectation) if expectation in known else None


def row_by_row(expectation: Any) -> bool:
    """Whether an expectation tells which rows fail."""
    return hasattr(expectation, "map_metric") or getattr(
        expectation, "row_level", expectation.expectation_type == "unexpected_rows_expectation"
    )


def configured(gate: Expectation, facts: Mapping[str, Any]) -> Any:
    """A gate as Great Expectations takes it, with those of the facts that a rule of ours asks for.

    Text that Spark parses goes there without its comments: so it is what was looked at (contracts/queries.py).
    """
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    asked = getattr(implementation(gate.type), "__fields__", {}) if hasattr(implementation(gate.type), "about") else {}
    given = {name: fact for name, fact in facts.items() if name in asked}
    in_sql = {name: strip_comments(gate.kwargs[name]) for name in _in_sql(gate)}
    return ExpectationConfiguration(type=gate.type, kwargs={**gate.kwargs, **in_sql, **given})


def _in_sql(gate: Expectation) -> list[str]:
    """Return the parameters of a gate that Spark parses."""
    names = ["unexpected_rows_query"] if gate.type == "unexpected_rows_expectation" else []
    if not str(gate.kwargs.get("condition_parser")).startswith("great_expectations"):
        names.append("row_condition")
    return [name for name in names if isinstance(gate.kwargs.get(name), str)]


def named(expectation: str, kwargs: Mapping[str, Any]) -> str:
    """An expectation with its parameters, as people write it."""
    return f"{expectation}({', '.join(f'{name}={value!r}' for name, value in kwargs.items())})"


def imported() -> Any:
    """Great Expectations with our rules, imported when a gate needs it, without its chatter: it takes seconds."""
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    os.environ.setdefault("TQDM_DISABLE", "1")
    logging.getLogger("great_expectations").setLevel(logging.WARNING)
    import great_expectations
    import great_expectations.expectations.registry

    import hindcast.quality.json_schemas
    import hindcast.quality.rules  # noqa: F401  # what is in them registers itself

    return great_expectations


def complaints(contract: Contract) -> Iterator[Complaint]:
    """Every complaint about the gates of a contract that only their expectations can tell.

    An expectation that there is not, or with parameters that it refuses; a rule of ours where it has nothing to look
    at; quarantine where no failing rows can be told.
    """
    for field, tables in (("topics", contract.topics), ("views", contract.views)):
        for name in tables:
            for number, gate in enumerate(contract.expectations(name)):
                if problem := _problem(contract, name, gate):
                    yield complaint((field, name, "expect", number), *problem)


def described(contract: Contract, name: str, gate: Expectation) -> Any:
    """A gate for Great Expectations to show as HTML, not to run: a rule of ours as people write it."""
    shown = configured(gate, facts(contract, name, gate) | _SAMPLE)
    if hasattr(implementation(gate.type), "about"):
        shown.description = html.escape(named(gate.type, gate.kwargs))
    return shown


def facts(contract: Contract, name: str, gate: Expectation) -> dict[str, Any]:
    """What a rule of ours may ask about the table that it guards, as far as the contract tells it."""
    shape = shapes(contract)[name]
    periods = PERIODS[shape.kind]
    told: dict[str, Any] = {"key": list(shape.key), "start": periods[0], "end": periods[-1], "finish": periods[-1]}
    other = gate.kwargs.get("table")
    if isinstance(other, str) and (referred := shapes(contract).get(other)):
        told |= {"found_in": other, "found_key": list(referred.key)}
    return told


def _problem(contract: Contract, name: str, gate: Expectation) -> tuple[str, str] | None:
    """What is wrong with a gate, and what would do; None if nothing is."""
    found = implementation(gate.type)
    if found is None:
        names = imported().expectations.registry.list_registered_expectation_implementations()
        return f"no expectation '{gate.type}'", nearest(gate.type, names)
    if problem := _misplaced(contract, name, gate, found):
        return f"{gate.type}: {problem[0]}", problem[1]
    if far := _far(gate):
        return f"{gate.type}: {far}", "write what is meant under $defs in it, and refer to it as '#/$defs/NAME'"
    try:
        configured(gate, facts(contract, name, gate) | _SAMPLE).to_domain_obj()
    except (TypeError, ValueError, imported().exceptions.GreatExpectationsError) as error:
        told, mend = _told(error, gate, found)
        return f"{named(gate.type, gate.kwargs)}: {told}", mend
    return None


def _far(gate: Expectation) -> str:
    """Return what is wrong with a JSON Schema that is not whole; empty if nothing is."""
    from hindcast.quality.json_schemas import find_far

    told = find_far(gate.kwargs.get("json_schema"))
    return (
        f"json_schema refers to {show_briefly(told)}, which is not in it: nothing is read from elsewhere"
        if told
        else ""
    )


_SAMPLE: dict[str, Any] = {
    "known_at": "2026-01-01T00:00:00+00:00",
    "until": "2026-01-01T00:00:00+00:00",
    "planned": {0: [(0, 1)]},
    "earlier": [1.0],
}
"""What only a run can tell, for a rule's parameters to be looked at before."""


def _misplaced(contract: Contract, name: str, gate: Expectation, found: Any) -> tuple[str, str] | None:
    """What is wrong with a gate on this table, and what would do; None if nothing is."""
    about, kind = getattr(found, "about", None), shapes(contract)[name].kind
    view = contract.views.get(name)
    if gate.on_failure == "quarantine" and about == "ties":
        return "a record that loses a tie changes nothing that could be held back", "write stop or warn"
    if gate.on_failure == "quarantine" and not row_by_row(found):
        return "on_failure: quarantine needs failing rows, and this judges all rows together", "write stop or warn"
    if gate.rows == "table" and gate.on_failure == "quarantine":
        return "only what a run would change can be held back, not rows: table", "leave rows out, or write stop or warn"
    if about is None:
        return None
    if gate.rows == "table" and about not in ("change", "near", "keys"):
        return "rows: table does not suit it: it looks at what it needs", "leave rows out"
    if set_ := sorted(gate.kwargs.keys() & (facts(contract, name, gate) | _SAMPLE).keys()):
        return f"{', '.join(set_)} is told by the run", "remove it"
    asked = found.__fields__.keys()
    if "end" in asked and kind != "versions":
        return f"{name} holds {kind}, not periods of keys", "use it on a table of versions"
    if about in ("records", "unpublished") and name not in contract.topics:
        return "it judges the records of a topic, this is a view", "move it to a topic"
    if about == "ties" and (name not in contract.topics or contract.topics[name].read != "table"):
        return "it judges the records of a topic that is read as a table", "move it to such a topic"
    if about == "events" and not (view and view.stream and view.join and view.join.table):
        return "it judges the events of a stream that is joined with a table", "use it on such a view"
    if "found_in" in asked:
        return _unfound(contract, name, gate)
    return None


def _unfound(contract: Contract, name: str, gate: Expectation) -> tuple[str, str] | None:
    """What is wrong with the table that a gate wants to find keys in: a run must have it before."""
    other, known_ = gate.kwargs.get("table"), shapes(contract)
    before = contract.before(name)
    if not isinstance(other, str) or other not in known_:
        return f"no table '{other}' here", nearest(str(other), [n for n in before if known_[n].kind == "versions"])
    if other not in before:
        return f"'{other}' is not there yet when {name} is gated", f"one of these is: {', '.join(before) or 'none'}"
    if known_[other].kind != "versions":
        return f"'{other}' holds {known_[other].kind}, not versions of keys", "name a table of versions"
    if len(gate.columns) != len(known_[other].key):
        told = ", ".join(known_[other].key)
        return f"the key of {other} has {len(known_[other].key)} columns: {told}", "name as many, in this order"
    return None


def _told(error: Exception, gate: Expectation, found: Any) -> tuple[str, str]:
    """What a model refuses, in one line, and what would do."""
    takes = _parameters(found)
    if unknown := [name for name in gate.kwargs if name not in found.__fields__]:
        return f"no parameter '{unknown[0]}'", nearest(unknown[0], takes)
    if not hasattr(error, "errors"):
        return str(error).strip().splitlines()[0], _GALLERY
    refused: dict[str, list[Any]] = {}
    for problem in error.errors():
        refused.setdefault(str(problem["loc"][0]), []).append(problem)
    if lacking := [name for name, (first, *_) in refused.items() if first["type"] == "value_error.missing"]:
        return f"parameter '{lacking[0]}' is missing", f"it takes {', '.join(takes)}"
    # What is wrong with all parameters together follows from what is wrong with one.
    name = next((name for name in refused if name != "__root__"), "__root__")
    text = _first(refused[name])
    if name != "__root__" and not text.startswith(name):
        text = f"{name}: {text}"
    told, _, mend = text.partition("; ") if hasattr(found, "about") else (text, "", "")
    return told, mend or _GALLERY


def _first(problems: list[Any]) -> str:
    """What one parameter must be: of the forms that it may have the first is meant for people, none is a dict."""
    forms = [problem["msg"] for problem in problems if problem["type"] != "type_error.dict"]
    return str((forms or [problems[0]["msg"]])[0])


def _parameters(found: Any) -> list[str]:
    """The parameters of an expectation that a gate can give."""
    base = imported().expectations.expectation.BatchExpectation
    others = {*base.__fields__}
    if hasattr(found, "about"):
        others |= {*found.success_keys, *_TOLD, *_SAMPLE}
    return sorted(found.__fields__.keys() - others)


_GALLERY = "docs/quality.md lists our rules with their parameters, Great Expectations' gallery its own"
_TOLD = ("key", "start", "end", "finish", "found_in", "found_key")
"""Parameters of our rules that `facts` gives."""
