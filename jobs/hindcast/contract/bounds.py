"""How large and how deep what a user writes may be: checked before anything recurses into it.

A file is read by every process that reads its neighbours too: the scheduler's DAG file, Airflow's API server, the
command. A file that takes minutes, or overflows the stack, would stop all pipelines. So everything is bounded here:
bytes, parts and depth of YAML and JSON, what aliases multiply, and the terms and depth of expressions and types.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import yaml

from hindcast.common import bounded_files
from hindcast.common.bounded_files import ExcessError

SECONDS = 5.0
"""The most time of a processor for reading a contract. All other limits keep well below it; it is for what the parser
of SQL, which may try every way to read a text, does with texts that nobody foresaw.
"""

FOLDER_SECONDS = 12.0
"""The time of a processor for all contracts of a folder (folder.try_load_all)."""

TABLE_SECONDS = 0.001
"""The time that the tasks of a topic, input or view take, which counts as that of reading its contract."""

DAG_FILE_SECONDS = 23.0
"""The time of a processor for the contracts of a DAG file, and for their DAGs. Airflow waits half a minute for the file
(dagbag_import_timeout), with what it imports.
"""

FIRST_SECONDS, SLOW_SECONDS, LAST_SECONDS = 1.0, 9.0, 0.1
"""Of a folder: the time that each contract may take at first, or only LAST_SECONDS once those that took longer have
taken SLOW_SECONDS, or the others FOLDER_SECONDS. With both and two seconds more gone, no further file is read.
"""

BYTES = 1 << 20
"""The most bytes of a file, and characters of YAML once its aliases are expanded."""

PARTS = 50_000
"""The most names and values of a file, aliases expanded; 5,000 columns in a topic and a view are 20,000."""

DEPTH = 40
"""The deepest nesting of lists and mappings of YAML."""

REASON = 1_000
"""The longest reason of a run, a release or a close: it is shown in lists of runs."""

NAME = 200
"""The longest name. Airflow takes 250 characters for the id of a DAG or a task, into which ours are put."""

DESCRIPTION = 10_000
"""The most characters of a description: pages and the DAG of each pipeline show it."""

TABLES = 500
"""The most topics, inputs and views of one contract: each is a task or two of one DAG."""

FOLDER_FILES = 5_000
"""The most contract files of a folder that are read; smaller ones come first. Each gives at least a DAG, which takes
Airflow some milliseconds, of the 50 s that it has for a DAG file.
"""

FOLDER_TABLES = 10_000
"""The most topics, inputs and views of a folder for which a DAG file has tasks; smaller contracts come first. Airflow
ends the process that reads the file after 50 s (dag_file_processor_timeout), and a task takes more than a millisecond.
"""

GATES = 1_000
"""The most gates of a contract."""

EXPRESSION, TERMS, BRACKETS, NESTED = 50_000, 5_000, 30, 100
"""Of an expression: the most characters, terms and nested brackets, and the greatest depth of its tree."""

ALL_TERMS = 20_000
"""The most terms of all expressions of a contract together."""

MOMENTS, ALL_MOMENTS = 1_500, 500
"""The most weight of an expression's conversions to timestamps (moments.weigh_guards), and how many times a contract
may mention timestamps.
"""

TYPE, TYPE_DEPTH, ALL_TYPES = 20_000, 20, 10_000
"""Of a type: the most characters, and nested types. Of all nested types of a contract: the most parts."""

SCHEMA_DEPTH, SCHEMA_PARTS = 50, 20_000
"""Of an Avro schema: the most nested types, and parts once each named type is expanded where it is used."""

EMPTY_PARTS = 64
"""Of an item of an Avro array or map: the most parts that take no bytes, as null, for each byte that it takes. A
union's item takes two bytes or more, so unions of 120 event types are items.
"""

FIXED_BYTES = 1 << 26
"""The most bytes of an Avro `fixed`: Spark allocates them for each value before it reads one."""


def read_text(path: Path, most: int = BYTES) -> str:
    """Return the text of a file, by default of a contract (`bounded_files.read_text`)."""
    return bounded_files.read_text(path, most)


def refuse_excess(events: Iterable[yaml.Event]) -> None:
    """Raise ExcessError for YAML, as it is parsed, that is too deep or too large once its aliases are expanded."""
    parts = characters = types = 0
    open_: list[tuple[str | None, int, int]] = []
    sizes: dict[str, tuple[int, int]] = {}
    for event in events:
        line = event.start_mark.line + 1 if event.start_mark else None
        if isinstance(event, yaml.ScalarEvent):
            parts, characters = parts + 1, characters + len(event.value)
            types += event.value.count("<") + event.value.count(",") if "<" in event.value else 0
            if (odd := find_unprintable(event.value)) is not None:
                found = f"a text contains the character U+{ord(odd):04X}"
                raise ExcessError(found, _UNPRINTABLE_FIX, line)
            if event.anchor:
                sizes[event.anchor] = 1, len(event.value)
        elif isinstance(event, yaml.CollectionStartEvent):
            open_.append((event.anchor, parts, characters))
            parts += 1
            if len(open_) > DEPTH:
                found = f"lists and mappings are nested more than {DEPTH} deep"
                raise ExcessError(found, "flatten it; put text with brackets in quotes", line)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, parts_before, characters_before = open_.pop()
            if anchor:
                sizes[anchor] = parts - parts_before, characters - characters_before
        elif isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _, _ in open_):
                raise ExcessError("contains an alias of itself", "write it out without aliases", line)
            more, longer = sizes.get(event.anchor or "", (1, 0))
            parts, characters = parts + more, characters + longer
        if parts > PARTS or characters > BYTES:
            found = f"more than {PARTS:,} names and values, or {BYTES:,} characters, with aliases expanded"
            raise ExcessError(found, "split the pipeline, or write it without aliases", line)
        if types > ALL_TYPES:
            raise ExcessError(f"nested types have more than {ALL_TYPES:,} parts", "split the pipeline", line)


def find_unprintable(text: str) -> str | None:
    """Return the first character that controls a terminal, changes the direction of text, or cannot be stored."""
    match = _UNPRINTABLE.search(text)
    return match[0] if match else None


def refuse_deep_brackets(text: str, opening: str, closing: str, most: int, what: str) -> None:
    """Raise ExcessError for text with more than `most` nested brackets; the message calls them `what`."""
    depth = 0
    for match in re.finditer(f"[{re.escape(opening + closing)}]", text):
        depth = depth + 1 if match[0] in opening else max(depth - 1, 0)
        if depth > most:
            raise ExcessError(f"has more than {most} nested {what}", "split it into several steps")


_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_UNPRINTABLE_FIX = (
    "remove it: it is invisible where the text is shown; a string in an expression can have it as '\\u001F'"
)
