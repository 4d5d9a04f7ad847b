"""Contracts: what a user writes, as frozen and validated objects."""

from hindcast.contract.expectation import Expectation
from hindcast.contract.folder import (
    find,
    find_owners,
    is_meant_as,
    is_targets_file,
    list_contract_files,
    load_all,
    locate_complaint,
    locate_complaint_in_file,
    refuse_many_tables,
    refuse_unknown_variables,
    repeated_name_error,
    try_load_all,
)
from hindcast.contract.folder_reader import count_tables
from hindcast.contract.load import load, load_text, try_load
from hindcast.contract.model import Contract
from hindcast.contract.shapes import Shape, list_shapes
from hindcast.contract.topic import Input, Keep, Topic
from hindcast.contract.view import Join, View, Window

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
    "count_tables",
    "find",
    "find_owners",
    "is_meant_as",
    "is_targets_file",
    "list_contract_files",
    "list_shapes",
    "load",
    "load_all",
    "load_text",
    "locate_complaint",
    "locate_complaint_in_file",
    "refuse_many_tables",
    "refuse_unknown_variables",
    "repeated_name_error",
    "try_load",
    "try_load_all",
]
