"""Contracts: what a user writes, as frozen and validated objects."""

from hindcast.contracts.expectation import Expectation
from hindcast.contracts.load import (
    choose_owner,
    complain,
    complain_of,
    find,
    load,
    load_all,
    paths,
    read,
    read_all,
    repeated,
)
from hindcast.contracts.model import Contract
from hindcast.contracts.shapes import Shape, shapes
from hindcast.contracts.topic import Input, Keep, Topic
from hindcast.contracts.view import Join, View, Window

__all__ = [
    "Contract",
    "Expectation",
    "Input",
    "Join",
    "Keep",
    "Shape",
    "Topic",
    "View",
    "Window",
    "choose_owner",
    "complain",
    "complain_of",
    "find",
    "load",
    "load_all",
    "paths",
    "read",
    "read_all",
    "repeated",
    "shapes",
]
