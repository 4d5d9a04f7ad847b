"""What pydantic finds wrong with a contract, in our words: what was found, and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import yaml
from pydantic import BaseModel

from hindcast.contracts.expectation import Expectation
from hindcast.contracts.model import Contract
from hindcast.contracts.topic import Input, Keep, TimeSkew, Topic
from hindcast.contracts.types import shown
from hindcast.contracts.view import Join, View, Window
from hindcast.contracts.views import Complaint
from hindcast.errors import nearest


def complaint(node: yaml.Node, problem: Any) -> Complaint:
    """One of pydantic's problems (`ValidationError.errors()`) with the contract that a YAML node holds."""
    location = _placed(node, problem["loc"])
    dotted, kind, value = ".".join(map(str, location)), problem["type"], problem["input"]
    if kind == "extra_forbidden":
        mend = nearest(str(location[-1]), _fields(location[:-1]))
        return Complaint(location, f"unknown field '{dotted}'", mend)
    if kind == "missing":
        return Complaint(location, f"field '{dotted}' is missing", f"add '{location[-1]}:' here")
    if kind in _WORDS:
        found, mend = _WORDS[kind](location, value, problem)
    else:
        told, _, mend = problem["msg"].removeprefix("Value error, ").partition("; ")
        found, mend = told, mend or f"found {shown(value)} here; see docs/contract.md"
    return Complaint(location, f"{dotted}: {found}", mend)


_Place = tuple[Any, ...]


def _choice(_: _Place, value: Any, problem: Any) -> tuple[str, str]:
    known = re.findall(r"'([^']*)'", problem["ctx"]["expected"])
    return f"{shown(value)} is not known here", nearest(str(value), known)


def _text(location: _Place, value: Any, _: Any) -> tuple[str, str]:
    if value is None:
        return "no text stands here", f"write some, or remove '{location[-1]}'"
    if isinstance(value, dict | list):
        return (
            f"{shown(value)} stands here, not text",
            "write one text; in quotes if it has braces, brackets or a colon",
        )
    told = str(value).lower() if isinstance(value, bool) else str(value)
    return f"{told} is not text", f'put it in quotes: "{told}"'


def _name(_: _Place, value: Any, __: Any) -> tuple[str, str]:
    return (
        f"{shown(value)} stands here for a name, which is text",
        "write a field's name; in quotes if YAML takes it for another thing",
    )


def _flag(_: _Place, value: Any, __: Any) -> tuple[str, str]:
    meant = {"yes": "true", "on": "true", "1": "true", "no": "false", "off": "false", "0": "false"}
    text = str(value).lower()
    wanted = text if text in ("true", "false") else meant.get(text)
    return (
        f"{shown(value)} is neither true nor false",
        f"write {wanted} without quotes" if wanted else "write one of them",
    )


def _number(_: _Place, value: Any, __: Any) -> tuple[str, str]:
    return f"{shown(value)} is not a whole number above 0", "write for example 1000000"


def _list(location: _Place, value: Any, _: Any) -> tuple[str, str]:
    if "renamed" in location:
        mend = f"write [{value}]" if isinstance(value, str) else "write the old names: [cost]"
    else:
        mend = "write each gate in a line of its own: - expect_column_values_to_not_be_null: {column: price}"
    return f"{shown(value)} stands here, not a list", mend


def _mapping(location: _Place, value: Any, problem: Any) -> tuple[str, str]:
    return f"{shown(value)} stands here, not a mapping", f"write {_example(location, value, problem)}"


def _short(location: _Place, value: Any, problem: Any) -> tuple[str, str]:
    return f"{shown(value)} without anything in it", f"write for example {_example(location, {}, problem)}"


_WORDS: dict[str, Callable[[_Place, Any, Any], tuple[str, str]]] = {
    "literal_error": _choice,
    "string_type": _text,
    "invalid_key": _name,
    "bool_type": _flag,
    "int_type": _number,
    "greater_than": _number,
    "tuple_type": _list,
    "dict_type": _mapping,
    "model_type": _mapping,
    "too_short": _short,
}
"""By pydantic's types of problems, each with the place, the value and the problem itself."""

_OF_MODELS = {
    "Topic": "{read: table, key: {item: string}, value: {price: double}}",
    "Input": "{table: restaurant.menu, key: {item: string}, value: {price: double}}",
    "View": "{stream: orders, where: quantity > 1}",
    "Join": "{table: menu, on: item}",
    "Window": "{tumbling: 1 hour}",
    "Expectation": "expect_column_values_to_not_be_null: {column: price}",
}
_OF_FIELDS = {
    "key": ("id", "string"),
    "value": ("price", "double"),
    "renamed": ("price", "[cost]"),
    "headers": ("trace", "trace-id"),
    "metadata": ("lsn", "source.lsn"),
    "encoded": ("price", "Decimal"),
    "aggregate": ("n", "count(*)"),
    "kwargs": ("column", "price"),
}
"""What stands in a field for example: a name, and what it is."""


def _example(location: _Place, value: Any, problem: Any) -> str:
    """What could stand at a place where a mapping is wanted: with the names that were written, if they are some."""
    if problem["type"] == "model_type":
        return _OF_MODELS.get(problem["ctx"]["class_name"], "its fields")
    field, section = str(location[-1]), str(location[0])
    if problem["type"] == "too_short" and "renamed" in location[:-1]:
        return "[cost]"
    if field in ("topics", "inputs", "views"):
        return f"{{menu: {_OF_MODELS[field.capitalize()[:-1]]}}}"
    names = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    own = section == "views" and field not in ("aggregate", "kwargs")  # expressions: of a column, the column
    name, what = ("item", "item") if own else _OF_FIELDS.get(field, ("item", "item"))
    names = [it for it in names if isinstance(it, str) and it.isidentifier()] or [name]
    return f"{{{', '.join(f'{it}: {it if own else what}' for it in names)}}}"


def _placed(node: yaml.Node | None, told: _Place) -> _Place:
    """Pydantic's path to a problem without what stands in no contract: its tags, and the parts of unions."""
    location: list[Any] = []
    for part in told:
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


def _fields(location: _Place) -> list[str]:
    """The fields that the object at `location` can have."""
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
    if len(location) >= 2:
        model = models.get(str(location[0]), model)
    if len(location) >= 3:
        model = models.get(str(location[2]), model)
    return [field.alias or name for name, field in model.model_fields.items()]
