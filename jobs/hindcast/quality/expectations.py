"""Expectations: how a gate becomes one, of Great Expectations' own or of our rules, which are in `own_rules/`."""

from __future__ import annotations

import html
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, TypedDict

from hindcast.common.errors import show_briefly, suggest_nearest
from hindcast.common.extras import require_extra
from hindcast.common.json_values import JsonObject, JsonValue
from hindcast.contract import Contract, Expectation, list_shapes
from hindcast.contract.gates import build_complaint
from hindcast.contract.parsing import strip_comments
from hindcast.contract.shapes import PERIODS
from hindcast.contract.view_checks import Complaint

if TYPE_CHECKING:
    from great_expectations.expectations.expectation import Expectation as Implementation
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    from hindcast.quality.own_rules.base import GateRule


class GateFacts(TypedDict, total=False):
    """What rules of ours have parameters for that a contract does not write: facts about a table and a run.

    `found_in`, `found_key`: the table that keys are looked up in. `planned`: the ranges of offsets of each partition;
    `earlier`: what the gate measured in earlier runs. The last five: as `own_rules.closed_periods` describes them.
    """

    key: list[str]
    start: str
    end: str
    finish: str
    found_in: str
    found_key: list[str]
    known_at: str
    until: str
    planned: dict[int, list[tuple[int, int]]]
    earlier: list[float]
    kind: str
    closed: list[list[str]]
    closing: str
    closing_by: list[str]
    judged: str
    content: list[str]
    maps: list[str]


def find_row_set(gate: Expectation) -> str:
    """Return the rows that a gate looks at, a name for `StagedChange.rows`.

    Our rules choose them, unless the gate asks for `rows: table` and the rule can judge a whole table.
    """
    rule = find_rule(gate.type)
    return gate.rows if rule is None or (gate.rows == "table" and rule.row_set in _TABLE_ROW_SETS) else rule.row_set


_TABLE_ROW_SETS = ("change", "near", "keys")
"""The row sets of rules that can judge a whole table."""


def find_implementation(expectation: str) -> type[Implementation] | None:
    """Return the class of an expectation, Great Expectations' or ours; None if there is none of that name."""
    registry = import_gx().expectations.registry
    known = registry.list_registered_expectation_implementations()
    return registry.get_expectation_impl(expectation) if expectation in known else None


def find_rule(expectation: str) -> type[GateRule] | None:
    """Return the class of a rule of ours; None for other expectations."""
    implementation = find_implementation(expectation)
    from hindcast.quality.own_rules.base import GateRule

    return implementation if implementation is not None and issubclass(implementation, GateRule) else None


def is_row_by_row(expectation: str) -> bool:
    """Return whether an expectation can say which rows fail."""
    rule = find_rule(expectation)
    if rule is not None:
        return rule.row_level
    return expectation == "unexpected_rows_expectation" or hasattr(find_implementation(expectation), "map_metric")


def configure_gate(gate: Expectation, facts: GateFacts) -> ExpectationConfiguration:
    """Return a gate as a configuration for Great Expectations, with the facts that a rule of ours has parameters for.

    SQL goes to Spark without its comments, which is the text that was checked (contract/queries.py).
    """
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    rule = find_rule(gate.type)
    parameters = rule.__fields__ if rule else {}
    given = {name: fact for name, fact in facts.items() if name in parameters}
    in_sql = {name: strip_comments(text) for name, text in gate.sql_parameters.items()}
    return ExpectationConfiguration(type=gate.type, kwargs={**gate.kwargs, **in_sql, **given})


def format_gate(expectation: str, kwargs: JsonObject) -> str:
    """Return an expectation with its parameters as text: `NAME(PARAMETER=VALUE, ...)`."""
    return f"{expectation}({', '.join(f'{name}={value!r}' for name, value in kwargs.items())})"


def import_gx() -> ModuleType:
    """Return Great Expectations with our rules registered. It is imported here, quietly, because that takes seconds."""
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    os.environ.setdefault("TQDM_DISABLE", "1")
    logging.getLogger("great_expectations").setLevel(logging.WARNING)
    require_extra("quality", "great_expectations")
    import great_expectations
    import great_expectations.expectations.registry

    logging.getLogger("great_expectations.expectations.registry").addFilter(_is_not_about_our_metric)
    import hindcast.quality.json_schemas
    import hindcast.quality.own_rules
    import hindcast.quality.regex_gates  # noqa: F401  # what is in them registers itself

    return great_expectations


def _is_not_about_our_metric(record: logging.LogRecord) -> bool:
    """Return False for the warning that a metric of ours takes the place of Great Expectations' own."""
    return not record.getMessage().startswith(_OUR_METRICS)


_OUR_METRICS = tuple(
    f"metric column_values.{name}"
    for name in ("match_json_schema", "match_regex", "not_match_regex")  # and their lists
)


def check_expectations(contract: Contract) -> Iterator[Complaint]:
    """Yield the complaints about a contract's gates that need Great Expectations to find.

    An unknown expectation; parameters that it refuses; a rule of ours on a table that it cannot judge; quarantine
    where the expectation does not say which rows fail.
    """
    for field, tables in (("topics", contract.topics), ("views", contract.views)):
        for name in tables:
            for number, gate in enumerate(contract.expectations(name)):
                if problem := _find_problem(contract, name, gate):
                    yield build_complaint((field, name, "expect", number), *problem)


def describe_gate(contract: Contract, name: str, gate: Expectation) -> ExpectationConfiguration:
    """Return a gate for Great Expectations to show as HTML, not to run; our rules are described by `format_gate`."""
    shown = configure_gate(gate, contract_facts(contract, name, gate) | _SAMPLE_FACTS)
    if find_rule(gate.type):
        shown.description = html.escape(format_gate(gate.type, gate.kwargs))
    return shown


def contract_facts(contract: Contract, name: str, gate: Expectation) -> GateFacts:
    """Return the facts about a table that rules of ours have parameters for, as far as the contract has them."""
    shape = list_shapes(contract)[name]
    periods = PERIODS[shape.kind]
    facts: GateFacts = {"key": list(shape.key), "start": periods[0], "end": periods[-1], "finish": periods[-1]}
    facts |= {"kind": shape.kind}
    other = gate.kwargs.get("table")
    if isinstance(other, str) and (referred := list_shapes(contract).get(other)):
        facts |= {"found_in": other, "found_key": list(referred.key)}
    return facts


def _find_problem(contract: Contract, name: str, gate: Expectation) -> tuple[str, str] | None:
    """Return what is wrong with a gate and how to fix it; None if nothing is wrong."""
    implementation = find_implementation(gate.type)
    if implementation is None:
        names = import_gx().expectations.registry.list_registered_expectation_implementations()
        return f"no expectation '{gate.type}'", suggest_nearest(gate.type, names)
    if problem := _find_misplacement(contract, name, gate):
        return f"{gate.type}: {problem[0]}", problem[1]
    if far := _describe_outside_reference(gate):
        return f"{gate.type}: {far}", "write what is meant under $defs in it, and refer to it as '#/$defs/NAME'"
    if _has_suite_parameter(gate.kwargs):
        return f"{gate.type}: $PARAMETER is a suite's, and there is none", "write the value itself"
    try:
        configure_gate(gate, contract_facts(contract, name, gate) | _SAMPLE_FACTS).to_domain_obj()
    except (TypeError, ValueError, import_gx().exceptions.GreatExpectationsError) as error:
        refusal, fix = _describe_refusal(error, gate, implementation)
        return f"{format_gate(gate.type, gate.kwargs)}: {refusal}", fix
    return None


def _has_suite_parameter(value: JsonValue) -> bool:
    """Return whether a gate's arguments have a parameter of a suite, which Great Expectations would look up."""
    if isinstance(value, Mapping):
        return "$PARAMETER" in value or any(map(_has_suite_parameter, value.values()))
    return isinstance(value, Sequence) and not isinstance(value, str) and any(map(_has_suite_parameter, value))


def _describe_outside_reference(gate: Expectation) -> str:
    """Return what is wrong with a JSON Schema that refers to something outside of it; an empty text if nothing is."""
    from hindcast.quality.json_schemas import find_outside_reference

    reference = find_outside_reference(gate.kwargs.get("json_schema"))
    if reference is None:
        return ""
    return f"json_schema refers to {show_briefly(reference)}, which is not in it: nothing is read from elsewhere"


_SAMPLE_FACTS: GateFacts = {
    "known_at": "2026-01-01T00:00:00+00:00",
    "until": "2026-01-01T00:00:00+00:00",
    "planned": {0: [(0, 1)]},
    "earlier": [1.0],
    "closed": [],
    "closing": "rows",
    "closing_by": ["systemFrom"],
    "content": [],
    "maps": [],
    "judged": "",
}
"""Stand-ins for facts that only a run has, so that a rule's parameters can be checked before."""


def _find_misplacement(contract: Contract, name: str, gate: Expectation) -> tuple[str, str] | None:
    """Return why a gate does not suit this table and how to fix it; None if it does."""
    rule, kind = find_rule(gate.type), list_shapes(contract)[name].kind
    view = contract.views.get(name)
    if gate.on_failure == "quarantine" and rule is not None and rule.row_set == "ties":
        return "a record that loses a tie changes nothing that could be held back", "write stop or warn"
    if gate.on_failure == "quarantine" and not is_row_by_row(gate.type):
        return "on_failure: quarantine needs failing rows, and this judges all rows together", "write stop or warn"
    if gate.rows == "table" and gate.on_failure == "quarantine":
        return "only what a run would change can be held back, not rows: table", "leave rows out, or write stop or warn"
    if rule is None:
        return None
    row_set, parameters = rule.row_set, rule.__fields__
    if gate.rows == "table" and row_set not in _TABLE_ROW_SETS:
        return "rows: table does not suit it: it looks at what it needs", "leave rows out"
    if given := sorted(gate.kwargs.keys() & (contract_facts(contract, name, gate) | _SAMPLE_FACTS).keys()):
        return f"{', '.join(given)} is set by the run", "remove it"
    if "end" in parameters and kind != "versions":
        return f"{name} holds {kind}, not periods of keys", "use it on a table of versions"
    if row_set in ("records", "unpublished") and name not in contract.topics:
        return "it judges the records of a topic, this is a view", "move it to a topic"
    if row_set == "ties" and (name not in contract.topics or contract.topics[name].read != "table"):
        return "it judges the records of a topic that is read as a table", "move it to such a topic"
    if row_set == "events" and not (view and view.stream and view.join and view.join.table):
        return "it judges the events of a stream that is joined with a table", "use it on such a view"
    if "found_in" in parameters:
        return _find_missing_table(contract, name, gate)
    return None


def _find_missing_table(contract: Contract, name: str, gate: Expectation) -> tuple[str, str] | None:
    """Return why a gate cannot look up keys in its table and how to fix it; a run must publish that table before."""
    other, shapes = gate.kwargs.get("table"), list_shapes(contract)
    before = contract.list_tables_before(name)
    if not isinstance(other, str) or other not in shapes:
        candidates = [table for table in before if shapes[table].kind == "versions"]
        return f"no table '{other}' here", suggest_nearest(str(other), candidates)
    if other not in before:
        return f"'{other}' does not exist yet when {name} is gated", f"use one of these: {', '.join(before) or 'none'}"
    if shapes[other].kind != "versions":
        return f"'{other}' holds {shapes[other].kind}, not versions of keys", "name a table of versions"
    if len(gate.columns) != len(key := shapes[other].key):
        return f"the key of {other} has {len(key)} columns: {', '.join(key)}", "name as many, in this order"
    return None


def _describe_refusal(error: Exception, gate: Expectation, expectation: type[Implementation]) -> tuple[str, str]:
    """Return what an expectation's model refuses, in one line, and how to fix it."""
    parameters = _list_parameters(expectation)
    if unknown := [name for name in gate.kwargs if name not in expectation.__fields__]:
        return f"no parameter '{unknown[0]}'", suggest_nearest(unknown[0], parameters)
    if not hasattr(error, "errors"):
        return str(error).strip().splitlines()[0], _GALLERY_FIX
    refused: dict[str, list[tuple[str, str]]] = {}
    for problem in error.errors():
        refused.setdefault(str(problem["loc"][0]), []).append((problem["type"], problem["msg"]))
    if lacking := [name for name, ((kind, _), *_) in refused.items() if kind == "value_error.missing"]:
        return f"parameter '{lacking[0]}' is missing", f"it takes {', '.join(parameters)}"
    # What is wrong with all parameters together follows from what is wrong with one.
    name = next((name for name in refused if name != "__root__"), "__root__")
    text = _choose_message(refused[name])
    if name != "__root__" and not text.startswith(name):
        text = f"{name}: {text}"
    refusal, _, fix = text.partition("; ") if find_rule(gate.type) else (text, "", "")
    return refusal, fix or _GALLERY_FIX


def _choose_message(problems: Sequence[tuple[str, str]]) -> str:
    """Return the message about one parameter: the first of those for its accepted types, except for a dict.

    `problems`: the type and the message of each. Great Expectations accepts a dict for its own use; people write one of
    the other types.
    """
    messages = [message for kind, message in problems if kind != "type_error.dict"]
    return (messages or [problems[0][1]])[0]


def _list_parameters(expectation: type[Implementation]) -> list[str]:
    """Return the parameters of an expectation that a gate can set."""
    others = {*import_gx().expectations.expectation.BatchExpectation.__fields__}
    if find_rule(expectation.expectation_type):
        others |= {*expectation.success_keys, *GateFacts.__annotations__}
    return sorted(expectation.__fields__.keys() - others)


_GALLERY_FIX = "docs/quality.md lists our rules and their parameters, Great Expectations' gallery its own"
