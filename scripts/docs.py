"""Writes the pages that are made from code: docs/cli.md from the parser, docs/contract.md and docs/topics.md from the
contract's model, docs/tables.md and docs/errors.md (docs_reference.py), and the pictures of the plane and of the house
(picture.py, house.py).

    .venv/bin/python scripts/docs.py

tests/test_docs.py fails when a page is not what this writes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import docs_reference as reference
import house
import picture

from hindcast.bitemporal.fates import FATES
from hindcast.cli.arguments import build_parser
from hindcast.cli.help import EXAMPLES
from hindcast.contract import Contract, Topic
from hindcast.contract.names import FOLDERS
from hindcast.formats import avro, json, primitive
from hindcast.formats import text as text_format

DOCS = Path(__file__).resolve().parent.parent / "docs"


def main() -> None:
    """Write every page."""
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


@cache
def pages() -> dict[Path, str]:
    """The generated pages by their place."""
    made = {
        "cli": cli,
        "contract": contract,
        "topics": topics,
        "tables": reference.tables,
        "errors": reference.error_page,
    }
    drawn: dict[str, Callable[[], str]] = {"house": house.svg}
    planes = {"plane": picture.NAAN, "hindsight": picture.ROUTE}
    drawn |= {name: partial(picture.svg, plane) for name, plane in planes.items()}
    pages = {DOCS / f"{name}.md": make() for name, make in made.items()}
    return pages | {DOCS / f"pictures/{name}.svg": draw() for name, draw in drawn.items()}


def cli() -> str:
    """docs/cli.md: every command with its arguments."""
    return "\n".join([_CLI.rstrip(), *(line for name, sub in commands() for line in _command(name, sub)), ""])


def commands() -> list[tuple[str, argparse.ArgumentParser]]:
    """The commands in the order in which `hindcast --help` lists them."""
    subs = next(a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))  # noqa: SLF001  # no other way
    return list(subs.choices.items())


def contract() -> str:
    """docs/contract.md: every field of a contract with its type, default and meaning."""
    schema = Contract.model_json_schema()
    filled = _CONTRACT.replace("<reserved>", ", ".join(f"`{name}`" for name in FOLDERS))
    for name, model in {"Contract": schema, **schema["$defs"]}.items():
        filled = filled.replace(f"<{name}>", "\n".join(_fields(model)))
    return filled


def topics() -> str:
    """docs/topics.md: what a contract can say of a topic, each field with the page that explains it."""
    head, _, *rows = _fields(Topic.model_json_schema())
    told = [f"{row.replace('](#', '](contract.md#')} {_explained(row.split('`')[1])} |" for row in rows]
    fields = [f"{head} more |", "| --- | --- | --- | --- | --- |", *told]
    formats = [f"| {_summary(module)} |" for module in (json, text_format, primitive, avro)]
    fates = [f"| `{fate}` | {told} |" for fate, told in _fates()]
    return (
        _TOPICS.replace("<fields>", "\n".join(fields))
        .replace("<formats>", "\n".join(["| format | |", "| --- | --- |", *formats]))
        .replace("<fates>", "\n".join(["| fate | meaning |", "| --- | --- |", *fates]))
    )


def _explained(field: str) -> str:
    """The page that explains a field of a topic."""
    page = next((page for page, fields in _EXPLAINED.items() if field in fields), None)
    return f"[{page}](topics/{page}.md)" if page else "[contract](contract.md#topic)"


def _fates() -> list[tuple[str, str]]:
    """The fates with their meanings, as the glossary has them."""
    glossary = (DOCS / "glossary.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in glossary.splitlines() if line.startswith("| `")]
    return [(row[0].strip("`"), row[1]) for row in rows if row[0].strip("`") in FATES]


def _summary(module: object) -> str:
    """A format's name and what it is, from the first line of its module."""
    return (module.__doc__ or "").partition("\n")[0].rstrip(".").replace(": ", " | ", 1)


def _command(name: str, sub: argparse.ArgumentParser) -> Iterator[str]:
    actions = [a for a in sub._actions if a.dest not in ("help", "target", "variables")]  # noqa: SLF001
    arguments = sorted(actions, key=lambda a: bool(a.option_strings))
    yield from ("", f"## hindcast {name}", "", sub.description or "", "")
    yield from ("```text", " ".join(["hindcast", name, *map(_used, arguments)]), "```", "")
    yield f"Example: `{EXAMPLES[name]}`."
    told = [f"| `{_called(a)}` | {_meaning(a)} |" for a in arguments if _meaning(a)]
    if told:
        yield from ("", "| argument | meaning |", "| --- | --- |", *told)


def _used(argument: argparse.Action) -> str:
    if not argument.option_strings:
        return {"*": f"[{_called(argument)} ...]", "?": f"[{_called(argument)}]"}.get(
            str(argument.nargs), _called(argument)
        )
    return _called(argument) if argument.required else f"[{_called(argument)}]"


def _called(argument: argparse.Action) -> str:
    if argument.nargs == 0:
        return argument.option_strings[0]
    if argument.choices:
        value = "{" + ",".join(map(str, argument.choices)) + "}"
    else:
        value = str(argument.metavar or argument.dest.upper())
    return f"{argument.option_strings[0]} {value}" if argument.option_strings else value


def _meaning(argument: argparse.Action) -> str:
    help_ = argument.help or ""
    default = f" Default: `{argument.default}`." if argument.choices and argument.default else ""
    return f"{help_[:1].upper()}{help_[1:].rstrip('.')}.{default}" if help_ else ""


def _fields(model: dict[str, Any]) -> Iterator[str]:
    yield from ("| field | type | default | meaning |", "| --- | --- | --- | --- |")
    required = model.get("required", [])
    for name, field in model["properties"].items():
        default = "required" if name in required else _default(field.get("default"))
        yield f"| `{name}` | {_type(name, field)} | {default} | {_told(name, field)} |"


def _told(name: str, field: dict[str, Any]) -> str:
    """A field's own words; of a field that holds a part of the contract, where that part is described."""
    return str(field.get("description") or f"See [{_PARTS[name]}](#{_PARTS[name].lower().replace(' ', '-')}).")


def _default(value: Any) -> str:
    match value:
        case None | "" | [] | {} | ():
            return "none"
        case bool():
            return f"`{str(value).lower()}`"
        case _:
            return f"`{value}`"


def _type(name: str, field: dict[str, Any]) -> str:
    options = field.get("anyOf") or field.get("oneOf")
    if options is None:
        return _one_type(name, field)
    return " or ".join(_type(name, option) for option in options if option.get("type") != "null")


def _one_type(name: str, field: dict[str, Any]) -> str:
    if "enum" in field:
        return " or ".join(f"`{value}`" for value in field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    if "$ref" in field:
        return "an object"
    match field.get("type"):
        case "array":
            return "list"
        case "object":
            return {
                "topics": "name to topic",
                "inputs": "name to input",
                "views": "name to view",
                "select": "column to expression",
                "renamed": "column to names",
                "headers": "column to header",
                "metadata": "column to path",
                "encoded": "column to encoding",
                "tables": "table to options",
            }.get(name, "column to type")
        case "string" if "second" in field.get("pattern", ""):
            return "duration"
        case "string" if "date-time" in field.get("format", "") or r"\d{4}" in field.get("pattern", ""):
            return "moment"
        case "string" if name in ("pipeline", "stream", "table"):
            return "name"
        case "string":
            return "text"
        case other:
            return str(other)


_PARTS = {
    "airflow": "Airflow",
    "topics": "Topic",
    "inputs": "Input",
    "views": "View",
    "join": "Join",
    "expect": "Gate",
}

_CLI = """\
# The command

<!-- Written by scripts/docs.py from hindcast.cli: change it there. -->

`make setup` leaves it at `.venv/bin/hindcast`. Without a command it says which contracts there are, how their last runs
ended, and what to do next. `source <(hindcast completion bash)` in `~/.bashrc` lets the shell complete commands,
options, contracts, tables and runs (zsh the same; fish: `hindcast completion fish | source`). An error is told on
stderr in a few lines: where, what was found, and what to do; the exit code is then 1. It is 3 if another run of the
pipeline has not ended, and nothing was done: ask again when it has. A command that cannot be parsed exits with 2, an
interrupted one with 130.

Moments are written as ISO 8601 and mean UTC unless they say otherwise: `2026-01-01`, `2026-01-01T00:03:00`. Where a
moment on the system axis is asked for, `run:3` means the known-at of run 3. Tables print times in UTC and null as `-`.

Every command that loads contracts takes `--target NAME` and `--var NAME=VALUE`, which may be repeated
([targets](contract.md#targets)), before its name or after it.
"""

_EXPLAINED = {
    "formats": (
        *("key_format", "value_format", "json", "key_schema", "value_schema", "renamed", "headers", "key", "value"),
    ),
    "debezium": ("envelope", "metadata", "encoded"),
    "timestamps": ("valid_time", "from", "max_time_skew"),
    "poison": ("max_malformed", "max_record_bytes"),
    "evolution": ("widen",),
    "scale": ("pattern",),
    "archives": ("archive",),
}
"""The pages in docs/topics with the fields that they explain."""

_TOPICS = """\
# Topics

<!-- Written by scripts/docs.py from the contract's model, the formats and the glossary: change it there. -->

What a contract can say of a topic. By what a topic is like:

| a topic has | read |
| --- | --- |
| JSON, text, Kafka's own serializers, Avro, headers, fields under old names | [formats](topics/formats.md) |
| change events of a database | [debezium](topics/debezium.md) |
| times in its values, no timestamps, clocks that are off | [timestamps](topics/timestamps.md) |
| records that do not decode, or are too large | [poison](topics/poison.md) |
| columns that came, went, or have other types now | [evolution](topics/evolution.md) |
| old records that only files still have | [archives](topics/archives.md) |
| hundreds of partitions, millions of records, many topics of one kind | [scale](topics/scale.md) |
| brokers with TLS, SASL, ACLs | [security](security.md) |

## Every field

<fields>

## Formats

<formats>

## Fates

Every offset that is replayed has exactly one:

<fates>
"""

_CONTRACT = """\
# The contract

<!-- Written by scripts/docs.py from hindcast.contract (model, topic, view): change it there. -->

One YAML file in `schemas/` is one pipeline: one DAG, one folder of the warehouse. `schemas/restaurant.yaml` is an
example with comments. `hindcast check` checks a contract and names file and line of what is wrong; `hindcast schema`
prints its JSON Schema for editors; `hindcast infer`
[drafts one](install.md#write-a-contract) from topics. A field that is not listed here is refused.

`hindcast check` parses expressions and finds what their names mean. It does not know their types: that `sum` is asked
of a boolean, the preview or the run says, with file and line; so does `hindcast check --spark`.

Spark gets an expression as it is written: only its columns are written out (`orders.item`), its comments left out, and
each making of a timestamp guarded ([valid time](topics/timestamps.md)). What `hindcast check` cannot follow it refuses:
`*`, placeholders, computed options of `from_json` and its like, functions that read files of the server or fetch what a
record names (`xpath`).

Spark takes 'now', 'today', 'tomorrow' and 'yesterday' for a day of its own clock, wherever it makes a date or timestamp
of such a text. An expression must not depend on that. `hindcast check` refuses such texts in casts, as arguments of
functions of dates (`to_date('now')`, `date_add('to' || 'day', 1)`), and beside a column that is a date or a timestamp
(`at > 'today'`, `coalesce(at, 'now')`). Where only Spark knows that it makes a cast, or what a text is
(`coalesce(at, lower('NOW'))`), a run refuses it before it writes anything, and so do the preview and
`hindcast check --spark`. Timestamps within other values (`from_json(text, 'at timestamp')`, a cast to
`array<timestamp>`) are refused too: make strings, and cast each.

A pattern that a text can make slow to match (`rlike '(a+)+$'`, `LIKE` with many `%`) has a limit: the run stops with
the view and the expression if a value takes more than 5 seconds. Without it one such value would keep a core of Spark,
which all pipelines share, busy for ever. Spark evaluates the limit for every row that reaches the expression. A pattern
that comes from a column always has the limit. `check` refuses a pattern that may be slow where there can be no limit:
in `exists(tags, t -> ...)`, `LIKE ANY`, with `ESCAPE` or `COLLATE`, in a branch of `CASE` whose text can fail to be
computed, as a delimiter of `str_to_map`, and with syntax that only Java has (`[a-z&&[^y]]`, `\\Q...\\E`, `\\G`, and of
`\\p{...}` what is neither a category, such as `\\p{Lu}`, nor a class, such as `\\p{Alpha}`).

A contract has bounds: 1 MiB, 50,000 names and values with aliases written out, 40 levels of lists and mappings, 500
tables, 1,000 gates; an expression 5,000 terms and 30 brackets in each other, all of them 20,000 terms; a name 200
characters, a description 10,000. Whatever is wrong with one file, other pipelines go on; its DAG says so.

How values are written:

| type | written |
| --- | --- |
| name | lower-case letters, digits and `_`, a letter first; <reserved> are taken |
| column to type | `{price: "decimal(8,2)"}`: Spark SQL types, also `array<...>` and `struct<...>`, no maps |
| column to path | `{lsn: source.lsn}`: `op`, `ts_ms`, `ts_us`, `ts_ns`, `source.<field>` or `transaction.<field>` |
| column to encoding | `{price: Decimal, at: MicroTimestamp}`: see [Debezium](topics/debezium.md) |
| column to expression | `{amount: quantity * price}`: Spark SQL expressions |
| duration | a number and a unit: `500 ms`, `10 seconds`, `90 minutes`, `36 hours`, `30 days`, `2 weeks` |
| boolean | `true` or `false` |
| moment | a date or ISO 8601 time, UTC unless it says otherwise: `2026-01-01` |

A pipeline is not called `hindcast_maintenance`, and its name does not end in `__release` or `__preview`: these are
DAGs of ours. A topic or view is not called as another one with `_as_of`, `_between` or `__closed_up_to` after its name:
these are functions of Spark SQL.

Names of columns are letters, digits and `_`, a letter first. `validFrom`, `validTo`, `systemFrom`, `systemTo`,
`timestamp`, `windowStart`, `windowEnd` and `windowClosed` are taken. A text with a comma stands in quotes inside
`{...}`.

## Variables

`variables` declares names with a type, and values are written `$(name)`:

```yaml
variables:
  region: {type: string, default: eu}
  least: {type: "decimal(8,2)", default: 9.50}
topics:
  orders: {topic: $(region).orders, read: stream, key: {id: string}, value: {area: string, amount: "decimal(8,2)"}}
views:
  large: {stream: orders, where: area = $(region) and amount > $(least)}
```

The types are `duration`, `string`, `boolean`, `tinyint`, `smallint`, `int`, `bigint`, `double`, `decimal(8,2)`, `date`
and `timestamp`. A value comes from `--var region=us`, else from the [target](#targets), else from `default`; never
from the environment. In an expression it is a literal of its type, so it can add no SQL; there it stands alone, not
within a text (write `concat('a-', $(region))`) nor as part of a name. Elsewhere it is text, or, where nothing else is
written, the value itself: `max_malformed: $(bad)` is a number. The name of the pipeline has no variables, nor have
names of columns and tables. `$$(name)` means the text `$(name)`. What a value changes is part of the contract's hash: a
run with another one derives again what depends on it.

## Targets

`targets.yaml`, beside the contracts, says what differs between environments:

```yaml
# targets.yaml
dev:
  warehouse: var/dev        # relative to HINDCAST_ROOT; its reports are in a folder `dev` of HINDCAST_REPORTS
  schedule: null            # only by hand
  on_failure: warn          # for every gate
prod:
  warehouse: s3a://prices/warehouse
  reports: /srv/reports
  variables: {region: us}
  pipelines:
    shop: {start: 2026-02-01, schedule: "@hourly", topics: {orders: prod.orders}, variables: {least: 0.01}}
```

`hindcast run shop --target dev`, `HINDCAST_TARGET=dev`, or in a DAG file `pipelines("schemas", target="dev")` chooses
one. Without a target the contracts hold as they are. Of Airflow, all processes need the same `HINDCAST_TARGET`: the
pages read it too. Whoever may write this file decides where all pipelines of the folder write: protect it like the
settings. A contract that is itself named `targets.yaml` remains a contract; `hindcast check schemas/*.yaml` skips the
targets.

## Pipeline

<Contract>

## Close

<Closing>

## Airflow

<AirflowOptions>

`tables` has for a topic or view what differs, without `tags` and `tables`:

```yaml
airflow:
  owner: shop team
  tags: [sales]
  retries: 4
  tables:
    orders: {pool: large, timeout: 2 days}
```

## Topic

<Topic>

[Topics](topics.md) says what each is for, by what a topic is like.

`max_time_skew` as an object has two fields; a duration alone is `after`:

<TimeSkew>

`keep` as an object has three; a duration alone is all of them ([Retention](retention.md)):

<Keep>

`archive` has ([Archives](topics/archives.md)):

<Archive>

## Input

<Input>

An input is read as it was known at the last completed run of its pipeline; the plan of a run fixes that moment, so that
a retry reads the same. It is named in views like a topic of their own. Windows over another pipeline's stream do not
tell whether they have closed: how many partitions its topic has is not known here. With `schedule: inputs` Airflow
starts a run when something of an input was published.

```yaml
inputs:
  menu: {table: restaurant.menu, key: {item: string}, value: {price: "decimal(8,2)"}}
```

## View

<View>

A view starts from a stream or a table, and joins it, aggregates it or transforms it. Its inputs are topics or other
views, in any order; windows and pairs of two streams cannot be inputs yet.

| form | what it is | its table |
| --- | --- | --- |
| `stream: orders`, `join: {table: menu, on: item}` | each event with the version valid at its time | events |
| `table: menu`, `join: {table: stock}` | versions of equal keys that overlap | versions |
| `table: menu`, `join: {table: dishes, on: dish}` | the same on a foreign key | versions |
| `stream: orders`, `join: {stream: payments, after: 1 hour}` | pairs of events within a window | pairs |
| `table: votes`, `group_by: {region: region}`, `aggregate: {votes: count(*)}` | what is valid, by group | versions |
| `stream: orders`, `aggregate: {spent: sum(amount)}` | over all events so far, by key or group | versions |
| the same with `window: {tumbling: 1 hour, grace: 5 minutes}` | by window | windows |
| `table: menu`, `where: price > 3`, `select: {...}`, `key: {...}` | a transformation, of a stream too | as its input |

Expressions see the columns of all inputs, each with its key. A column that two have is written with its input:
`orders.item`. A view keeps the key of its first input unless `key:` or `group_by:` gives another. A row whose group has
a null in it, or that has no value for any function of the aggregate, counts nowhere; the report counts it.

## Join

<Join>

## Window

<Window>

Lateness is judged by stream time, the largest timestamp so far in the event's own partition:

| window | takes an event if |
| --- | --- |
| tumbling, hopping | the window ends later than stream time less `grace` |
| sliding | the event is at most the window's length plus `grace` behind stream time |
| session | the end of the session that it would be in is at most the gap plus `grace` behind stream time |

An event that no window takes counts nowhere; the report counts it as too late. [Semantics](semantics.md#windows) draws
each. `hindcast query` says in `windowClosed` whether a window takes no further event.

## The kafka reading

`semantics: kafka` makes a view what a Kafka Streams application emits, record for record. The fields that begin with
`kafka:` above are for it alone. Views made of each other are one application: all of them are `kafka`, made of this
contract's topics, and either all of them `wait` or none.

```yaml
views:
  cheap: {table: menu, where: price < 10, semantics: kafka}
  bills: {stream: orders, join: {table: cheap, on: item, grace: 1 minute}, semantics: kafka}
  sold:
    stream: orders
    aggregate: {orders: count(*)}
    window: {tumbling: 1 hour, grace: 5 minutes, emit: on_window_close, store_retention: 1 day}
    semantics: kafka
```

A look-up by time needs a versioned table. Whether one is goes by the store that its rows are looked up in:

| table | versioned | history retention |
| --- | --- | --- |
| a topic | unless `versioned: false` | the topic's |
| `where` and `select` of a table | as that table | as that table |
| an aggregate, a join of tables, a new `key` | with `history_retention` | the view's |
| a table with `suppress` | never | none |

`hindcast check` refuses what Kafka Streams refuses: `grace` on a table that is not versioned or does not go back so
far, `suppress` of a versioned table, a `store_retention` that windows do not fit in, `min` and `max` of a table (an old
value cannot be taken out of them). It refuses `ttl`, and gates that hold back, for what is record for record.

## Gate

A gate is one expectation, of Great Expectations or of our own, with its parameters. It is asked about what a run
changes in the table, before anybody sees it. [Gates and reports](quality.md) says all about them.

```yaml
expect:
  - expect_column_values_to_be_between: {column: price, min_value: 0, strict_min: true}
  - expect_column_values_to_not_be_null: {column: price}
    on_failure: warn
  - expect_periods_to_not_overlap:
```

| field | type | default | meaning |
| --- | --- | --- | --- |
| `expect_...` | its parameters | required | The expectation's name, or `unexpected_rows_expectation`. |
| `on_failure` | `stop`, `quarantine` or `warn` | `stop` | Publish nothing, hold the failing keys back, or only tell. |
| `rows` | `change` or `table` | `change` | The rows that the run would open, or the whole table as it would be. |

`stop` stops the run. The next run takes what it left and what has come since: send a record that puts it right, or
change the gate, and run again.
"""


if __name__ == "__main__":
    main()
