"""The pages of docs/ about tables and errors, made from the code: from modules' docstrings, and from each raise.

scripts/docs.py writes them with the other pages that are made from code.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from hindcast.common import errors
from hindcast.common.errors import FINAL_ERRORS, HindcastError
from hindcast.contract import load
from hindcast.contract.shapes import identity_columns

HOUSE = Path(__file__).resolve().parent.parent / "jobs" / "hindcast"

OURS = {
    "ingest.topic_log": "<pipeline>/logs/<topic>",
    "ingest.fate_revisions": "<pipeline>/fates/<topic>",
    "ingest.initial_rows": "<pipeline>/base/<topic>",
    "ingest.trim_ledger": "<pipeline>/trimmed/<topic>",
    "ingest.schemas": "<pipeline>/schemas/<topic>",
    "runs.emission": "<pipeline>/emitted/<view>",
    "streams.task_rows": "<pipeline>/kept/<view>/<epoch>",
    "plan.journal": "<pipeline>/runs",
    "quality.gate_results": "<pipeline>/gates",
    "quality.failing_rows": "<pipeline>/failing",
}
"""The modules whose docstrings tell the columns of a table of our own, and where it lies."""

TOLD = {
    "validFrom": ("timestamp", "since when the row is true"),
    "validTo": ("timestamp", "until when, that moment not included; null: until changed"),
    "timestamp": ("timestamp", "when the event happened"),
    "windowStart": ("timestamp", "the window's start"),
    "windowEnd": ("timestamp", "its end: of sliding and session windows that moment is included, of others it is not"),
    "systemFrom": ("timestamp", "since when the row is believed: the known-at of the run that opened it"),
    "systemTo": ("timestamp", "until when; null: still"),
    "_partition": ("int", "lineage: the partition of the record that the row comes from; of a join, the event's"),
    "_offset": ("bigint", "lineage: that record's offset"),
    "_rightPartition": ("int", "lineage: the partition of the pair's second event"),
    "_rightOffset": ("bigint", "lineage: its offset"),
    "_belief": ("string", "layout, the partition column: `open`, `past` or `superseded`"),
}
"""The columns of tables of topics and views beside the contract's own: type and meaning."""

PAIRS = {**TOLD, "timestamp": ("timestamp", "the later of its two events")}
"""The same of pairs."""

KINDS = {
    "versions": ("a topic with `read: table`, and views of tables", ("validFrom", "validTo")),
    "events": ("a topic with `read: stream`, and streams with what they were joined with", ("timestamp",)),
    "windows": ("an aggregate with a `window`", ("windowStart", "windowEnd")),
    "pairs": ("two streams joined", ("timestamp",)),
}
"""What the tables of each kind are of, and their columns of time."""

LINEAGE = {
    "events": ("_partition", "_offset"),
    "pairs": ("_partition", "_offset", "_rightPartition", "_rightOffset"),
}


def tables() -> str:
    """docs/tables.md: every kind of table with its columns."""
    parts = [_TABLES.rstrip()]
    for kind, (of, _) in KINDS.items():
        key = ", ".join(f"`{name}`" for name in identity_columns(kind, ("the key's columns",))).replace(
            "`the key's columns`", "the key's columns"
        )
        told = PAIRS if kind == "pairs" else TOLD
        rows = [f"| {name} | {' | '.join(told[name])} |" for name in columns(kind)]
        parts += [f"### {kind.capitalize()}", f"Of {of}. No two believed rows share {key}.", _table("column", rows)]
    parts.append(_OURS.rstrip())
    for module, path in OURS.items():
        summary = (import_module(f"hindcast.{module}").__doc__ or "").strip()
        parts += [f"### `{path}`", *([_KEPT] if module == "streams.task_rows" else []), _linked(summary)]
        if module == "ingest.topic_log":
            parts += ["### `<pipeline>/quarantine`", _quarantine()]
    return "\n\n".join(parts) + "\n"


def columns(kind: str) -> tuple[str, ...]:
    """The columns of a kind's tables beside the contract's own."""
    lineage = LINEAGE.get(kind, ("_partition", "_offset") if kind == "versions" else ())
    return (*KINDS[kind][1], "systemFrom", "systemTo", *lineage, "_belief")


def error_page() -> str:
    """docs/errors.md: every class of error with what it means, and every message with what to do."""
    parts = [_ERRORS.replace("<tree>", _tree()).replace("<example>", _example()).rstrip()]
    said = messages()
    for kind in kinds():
        again = " A retry meets it again." if issubclass(kind, FINAL_ERRORS) else ""
        parts += [f"## {kind.__name__}", f"{(kind.__doc__ or '').strip()}{again}"]
        rows = [f"| {found} | {fix} |" for name, found, fix in said if name == kind.__name__]
        if rows:
            parts.append("\n".join(["| found | what to do |", "| --- | --- |", *sorted(dict.fromkeys(rows))]))
    return "\n\n".join(parts) + "\n"


def kinds() -> list[type[HindcastError]]:
    """The classes of errors, each below its parent."""

    def below(kind: type[HindcastError]) -> Iterator[type[HindcastError]]:
        for child in kind.__subclasses__():
            if child.__module__ == errors.__name__:
                yield child
                yield from below(child)

    return list(below(HindcastError))


def messages() -> list[tuple[str, str, str]]:
    """(class, what was found, what to do) of every error that the code makes of texts; values are `…`."""
    names = {kind.__name__ for kind in kinds()}
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(HOUSE.rglob("*.py"))}
    own = {_room(path): _constants(tree.body) for path, tree in trees.items()}
    return [
        (name.replace("Complaint", "ContractError"), found, fix)
        for path, tree in trees.items()
        for name, found, fix in _raised(tree, {*names, "Complaint"}, _imported(tree, own) | own[_room(path)])
    ]


def _room(path: Path) -> str:
    """A file as what imports it names it."""
    return ".".join(path.relative_to(HOUSE.parent).with_suffix("").parts).removesuffix(".__init__")


def _imported(tree: ast.Module, own: dict[str, dict[str, str]]) -> dict[str, str]:
    """The constants that a module takes from others, by name, or by the module that it imports."""
    found: dict[str, str] = {}
    for line in ast.walk(tree):
        if isinstance(line, ast.ImportFrom) and line.module:
            there = own.get(line.module, {})
            for it in line.names:
                whole = own.get(f"{line.module}.{it.name}", {})
                found |= {name: text for name, text in whole.items() if name.isupper()}
                found |= {it.asname or it.name: there[it.name]} if it.name in there else {}
    return found


def _raised(tree: ast.Module, names: set[str], known: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    for call, before in _calls(tree.body, []):
        if not (isinstance(call.func, ast.Name) and call.func.id in names and call.args):
            continue
        texts = known | _before(before)
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        places = [call.args[1], call.args[2]] if call.func.id == "Complaint" and len(call.args) == 3 else None
        found = _text(places[0] if places else call.args[0], texts)
        fix = _text(places[1] if places else given.get("fix"), texts)
        if re.search(r"\w{3}", found):
            yield call.func.id, _cell(found), _cell(fix)


def _calls(block: list[ast.stmt], before: list[ast.stmt]) -> Iterator[tuple[ast.Call, list[ast.stmt]]]:
    """Every call of a block, with the statements that were gone through before it."""
    for number, line in enumerate(block):
        done = [*before, *block[:number]]
        own = (ast.stmt, ast.ExceptHandler, ast.match_case)
        inner = [part for part in ast.iter_child_nodes(line) if not isinstance(part, own)]
        yield from ((node, done) for part in inner for node in ast.walk(part) if isinstance(node, ast.Call))
        blocks: list[list[ast.stmt]] = [getattr(line, name, []) for name in ("body", "orelse", "finalbody")]
        blocks += [part.body for part in (*getattr(line, "handlers", ()), *getattr(line, "cases", ()))]
        for inside in blocks:
            yield from _calls(inside, done)


def _before(lines: list[ast.stmt]) -> dict[str, str]:
    """The texts that names have after some statements: the last one, and those that may have been instead of it."""
    found: dict[str, list[str]] = {}
    for line in lines:
        if isinstance(line, ast.FunctionDef | ast.ClassDef):
            continue
        for name, text in _constants([*ast.walk(line)]).items():
            whatever = isinstance(line, ast.Assign) or bool(getattr(line, "orelse", None))
            found[name] = [text] if whatever else [*found.get(name, []), text]
    return {name: "; or: ".join(dict.fromkeys(texts)) for name, texts in found.items()}


def _constants(body: Sequence[ast.AST]) -> dict[str, str]:
    """The names that are given texts, with these; of several texts each."""
    found: dict[str, list[str]] = {}
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            text = _text(node.value, {})
            if re.search(r"\w{3}", text):
                found.setdefault(node.targets[0].id, []).append(text)
    return {name: "; or: ".join(dict.fromkeys(texts)) for name, texts in found.items()}


def _text(node: ast.AST | None, known: dict[str, str]) -> str:
    """A text of the code, as far as the code says it; what it fills in is `…`."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part, known) for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left, known) + _text(right, known)
        case ast.IfExp(body=one, orelse=other):
            texts = [text for text in (_text(one, known), _text(other, known)) if text not in ("", "…")]
            return "; or: ".join(texts) or "…"
        case ast.Name(id=name):
            return known.get(name, "…")
        case ast.FormattedValue(value=ast.Name(id=name)) | ast.Attribute(attr=name) if name.isupper():
            return known.get(name, "…")
        case ast.Call(func=ast.Name(id="suggest_nearest")):
            return "did you mean '…'? known here: …"
        case None:
            return ""
        case _:
            return "…"


def _cell(text: str) -> str:
    """A text as a cell of a table."""
    plain = re.sub(r"(…[ ,;:]*)+…", "…", re.sub(r"\s*\n\s*", " ", text).strip())
    return plain.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def _tree() -> str:
    """The drawing of errors' own docstring."""
    return "\n".join(line[4:] for line in (errors.__doc__ or "").splitlines() if line.startswith("    "))


def _example() -> str:
    """What `hindcast check` says of a contract that has a field's name wrong."""
    with TemporaryDirectory() as folder:
        contract = Path(folder) / "shop.yaml"
        contract.write_text(_WRONG, encoding="utf-8")
        try:
            load(contract)
        except HindcastError as error:
            return f"hindcast: {error}".replace(folder, "schemas")
    raise AssertionError("the example is a contract")


def _quarantine() -> str:
    from hindcast.ingest.quarantine import QUARANTINE_COLUMNS

    names = ", ".join(f"`{name}`" for name in QUARANTINE_COLUMNS)
    return (
        f"Every record that was refused, one table for the pipeline: {names}, as in the log; `topic` is its name in "
        "Kafka. What is no longer refused stays, with a later row that says so (`hindcast quarantine --all`)."
    )


def _linked(told: str) -> str:
    """A docstring as Markdown of a page: pages that it names are links, and its columns have our head."""
    told = re.sub(r"docs/([\w-]+)\.md", r"[\1](\1.md)", told)
    return re.sub(
        r"^\|[^|\n]*column[^|\n]*\| (type \| )?\|$",
        lambda it: f"| column | {it[1] or ''}meaning |",
        told,
        flags=re.MULTILINE,
    )


def _table(head: str, rows: list[str]) -> str:
    return "\n".join([f"| {head} | type | meaning |", "| --- | --- | --- |", *rows])


_WRONG = """\
pipeline: shop
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string}, value: {price: int}}
views:
  cheap: {table: menus, where: price < 5}
"""

_KEPT = "What a kafka view keeps for its next run, as rows of its operator's task. `bucket` is the partition column."

_TABLES = """\
# Tables

<!-- Written by scripts/docs_reference.py from the modules that write them: change it there. -->

A pipeline has a folder in the warehouse, and every table in it is plain Delta: any reader sees these columns.
[Concepts](concepts.md#the-tables-on-disk) says what the folder is for; [Reading](reading.md) has the conditions for
queries.

All moments are UTC with microseconds. Periods are half-open: the start belongs to them, the end does not.

## Tables of topics and views

They have the columns of the contract, the key's first, and these. Columns that begin with `_` are lineage and layout:
no part of what a row says.
"""

_OURS = """\
## Tables of our own

Beside these, of a table that is rolled over to a new store format, `<pipeline>/rollover/<topic>` has the rows that were
built so far ([Upgrading](upgrading.md)).
"""

_ERRORS = """\
# Errors

<!-- Written by scripts/docs_reference.py from hindcast.common.errors and from every `raise`: change it there. -->

An error says where, what was found, and what to do:

```text
<example>
```

`hindcast` tells it on stderr and exits with 1, or with 2 where 1 means that something was found (`compare`, `verify`).
In Airflow the task's log ends in it, and what stopped a run stands in its report. A task whose error a retry would meet
again fails at once, others are tried three times.

The classes, for those who catch them in Python:

```text
<tree>
```

Each has `found`, `where` and `fix`. Below is every message that the code has, `…` being what it fills in.
"""
