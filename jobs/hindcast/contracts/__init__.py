"""Contracts: what a user writes, as frozen and validated objects."""

from hindcast.contracts.load import find, load, load_all, paths, repeated
from hindcast.contracts.model import Contract, Expectation, StreamTableJoin, Topic, View

__all__ = [
    "Contract",
    "Expectation",
    "StreamTableJoin",
    "Topic",
    "View",
    "find",
    "load",
    "load_all",
    "paths",
    "repeated",
]
