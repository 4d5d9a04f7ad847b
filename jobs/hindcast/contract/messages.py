"""Pydantic's problems with a contract as messages: what was found, and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable

import yaml
from pydantic import BaseModel
from pydantic_core import ErrorDetails

from hindcast.common.errors import suggest_nearest
from hindcast.contract.expectation import Expectation
from hindcast.contract.model import Contract
from hindcast.contract.shapes import FieldPath
from hindcast.contract.task_options import AirflowOptions, TaskOptions
from hindcast.contract.topic import Input, Keep, TimeSkew, Topic
from hindcast.contract.types import ContractValue, format_value
from hindcast.contract.view import Join, View, Window
from hindcast.contract.view_checks import Complaint


def describe_problem(node: yaml.Node, problem: ErrorDetails) -> Complaint:
    """Return a problem of pydantic (`ValidationError.errors()`) with the contract in a YAML node as a complaint."""
    location = _find_location(node, problem["loc"])
    dotted, kind, value = ".".join(map(str, location)), problem["type"], problem["input"]
    if kind == "extra_forbidden":
        fix = suggest_nearest(str(location[-1]), _list_fields(location[:-1]))
        return Complaint(location, f"unknown field '{dotted}'", fix)
    if kind == "missing":
        return Complaint(location, f"field '{dotted}' is missing", f"add '{location[-1]}:' here")
    if kind in _DESCRIBERS:
        found, fix = _DESCRIBERS[kind](location, value, problem)
    else:
        found, _, fix = problem["msg"].removeprefix("Value error, ").partition("; ")
        fix = fix or f"found {format_value(value)} here; see docs/contract.md"
    return Complaint(location, f"{dotted}: {found}", fix)


def _describe_choice(_: FieldPath, value: ContractValue, problem: ErrorDetails) -> tuple[str, str]:
    known = re.findall(r"'([^']*)'", problem["ctx"]["expected"])
    return f"{format_value(value)} is not one of the allowed values", suggest_nearest(str(value), known)


def _describe_text(location: FieldPath, value: ContractValue, _: ErrorDetails) -> tuple[str, str]:
    if value is None:
        return "no text is given", f"write a text, or remove '{location[-1]}'"
    if isinstance(value, dict | list):
        return (
            f"expected text, found {format_value(value)}",
            "write one text; put it in quotes if it has braces, brackets or a colon",
        )
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"{text} is not text", f'put it in quotes: "{text}"'


def _describe_long_text(_: FieldPath, value: ContractValue, problem: ErrorDetails) -> tuple[str, str]:
    most = problem["ctx"]["max_length"]
    return f"has {len(str(value)):,} characters, more than {most:,}", "shorten it, and link to a page that has the rest"


def _describe_name(_: FieldPath, value: ContractValue, __: ErrorDetails) -> tuple[str, str]:
    return (
        f"expected a name, which is text, found {format_value(value)}",
        "write a field's name; put it in quotes if YAML reads it as another type",
    )


def _describe_flag(_: FieldPath, value: ContractValue, __: ErrorDetails) -> tuple[str, str]:
    flags = {"yes": "true", "on": "true", "1": "true", "no": "false", "off": "false", "0": "false"}
    text = str(value).lower()
    flag = text if text in ("true", "false") else flags.get(text)
    return (
        f"{format_value(value)} is neither true nor false",
        f"write {flag} without quotes" if flag else "write one of them",
    )


def _describe_number(_: FieldPath, value: ContractValue, __: ErrorDetails) -> tuple[str, str]:
    return f"{format_value(value)} is not a whole number above 0", "write for example 1000000"


def _describe_list(location: FieldPath, value: ContractValue, _: ErrorDetails) -> tuple[str, str]:
    example = "the old names: [cost]" if "renamed" in location else "tags: [sales]" if location[-1] == "tags" else ""
    if example:
        fix = f"write [{value}]" if isinstance(value, str) and value else f"write {example}"
    else:
        fix = "write each gate on its own line: - expect_column_values_to_not_be_null: {column: price}"
    return f"expected a list, found {format_value(value)}", fix


def _describe_long_list(location: FieldPath, value: ContractValue, problem: ErrorDetails) -> tuple[str, str]:
    most = problem["ctx"]["max_length"]
    found = f"{len(value):,}" if isinstance(value, list) else format_value(value)
    return f"expected at most {most} entries, found {found}", f"write at most {most} {location[-1]}"


def _describe_mapping(location: FieldPath, value: ContractValue, problem: ErrorDetails) -> tuple[str, str]:
    return f"expected a mapping, found {format_value(value)}", f"write {_find_example(location, value, problem)}"


def _describe_empty(location: FieldPath, value: ContractValue, problem: ErrorDetails) -> tuple[str, str]:
    return (
        f"expected at least one entry, found {format_value(value)} without any",
        f"write for example {_find_example(location, {}, problem)}",
    )


_DESCRIBERS: dict[str, Callable[[FieldPath, ContractValue, ErrorDetails], tuple[str, str]]] = {
    "literal_error": _describe_choice,
    "string_type": _describe_text,
    "string_too_long": _describe_long_text,
    "invalid_key": _describe_name,
    "bool_type": _describe_flag,
    "int_type": _describe_number,
    "greater_than": _describe_number,
    "tuple_type": _describe_list,
    "dict_type": _describe_mapping,
    "model_type": _describe_mapping,
    "too_short": _describe_empty,
    "too_long": _describe_long_list,
}
"""The function for each of pydantic's problem types; it takes the place, the value and the problem itself."""

_MODEL_EXAMPLES = {
    "Topic": "{read: table, key: {item: string}, value: {price: double}}",
    "Input": "{table: restaurant.menu, key: {item: string}, value: {price: double}}",
    "View": "{stream: orders, where: quantity > 1}",
    "Join": "{table: menu, on: item}",
    "Window": "{tumbling: 1 hour}",
    "Expectation": "expect_column_values_to_not_be_null: {column: price}",
    "AirflowOptions": "{owner: sales, retries: 4}",
    "TaskOptions": "{pool: large}",
}
_FIELD_EXAMPLES = {
    "key": ("id", "string"),
    "value": ("price", "double"),
    "renamed": ("price", "[cost]"),
    "headers": ("trace", "trace-id"),
    "metadata": ("lsn", "source.lsn"),
    "encoded": ("price", "Decimal"),
    "aggregate": ("n", "count(*)"),
    "kwargs": ("column", "price"),
}
"""An example of an entry of each field: its name and its value."""


def _find_example(location: FieldPath, value: ContractValue, problem: ErrorDetails) -> str:
    """Return an example of the mapping expected at a place, with the names that the user wrote, if any."""
    if problem["type"] == "model_type":
        return _MODEL_EXAMPLES.get(problem["ctx"]["class_name"], "its fields")
    field, section = str(location[-1]), str(location[0])
    if problem["type"] == "too_short" and "renamed" in location[:-1]:
        return "[cost]"
    if field in ("topics", "inputs", "views"):
        return f"{{menu: {_MODEL_EXAMPLES[field.capitalize()[:-1]]}}}"
    if location == ("airflow", "tables"):
        return f"{{orders: {_MODEL_EXAMPLES['TaskOptions']}}}"
    names = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    is_expression = section == "views" and field not in ("aggregate", "kwargs")  # the example is the column itself
    example, value = ("item", "item") if is_expression else _FIELD_EXAMPLES.get(field, ("item", "item"))
    names = [name for name in names if isinstance(name, str) and name.isidentifier()] or [example]
    return f"{{{', '.join(f'{name}: {name if is_expression else value}' for name in names)}}}"


def _find_location(node: yaml.Node | None, path: FieldPath) -> FieldPath:
    """Return pydantic's path to a problem without the parts that no contract has: tags and members of unions."""
    location: list[str | int] = []
    for part in path:
        if str(part).startswith("["):
            continue
        if isinstance(node, yaml.MappingNode):
            node = next((value for key, value in node.value if key.value == str(part)), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            node = node.value[part] if part < len(node.value) else None
        elif node is not None:
            continue
        location.append(part)
    return tuple(location)


def _list_fields(location: FieldPath) -> list[str]:
    """Return the names of the fields that the object at `location` can have."""
    models: dict[str, type[BaseModel]] = {
        "topics": Topic,
        "inputs": Input,
        "views": View,
        "join": Join,
        "window": Window,
        "max_time_skew": TimeSkew,
        "keep": Keep,
        "expect": Expectation,
    }
    model: type[BaseModel] = Contract
    if location[:1] == ("airflow",):
        model = AirflowOptions if len(location) == 1 else TaskOptions
    elif len(location) >= 2:
        model = models.get(str(location[0]), model)
    if len(location) >= 3 and location[0] != "airflow":
        model = models.get(str(location[2]), model)
    return [field.alias or name for name, field in model.model_fields.items()]
