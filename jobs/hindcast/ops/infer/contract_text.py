"""A draft as the text of a contract, with its reasons as comments. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime

from hindcast.common.errors import LINE_BREAKS, escape_controls
from hindcast.contract.bounds import NAME
from hindcast.contract.names import FOLDERS, MAINTENANCE, PREVIEW, RELEASE
from hindcast.ops.infer.columns import YAML_WORDS, DraftColumn, quote_column, quote_text
from hindcast.ops.infer.joins import JoinProposal
from hindcast.ops.infer.topic_draft import TopicDraft

MAX_GATES = 10
"""The most columns of a topic that get a gate."""


def write_contract(
    pipeline: str,
    topics: Sequence[TopicDraft],
    joins: Sequence[JoinProposal],
    now: datetime,
    left_out: Sequence[JoinProposal] = (),
) -> str:
    """Return the YAML of a contract; a comment names the joins that were left out."""
    return "\n".join(_list_lines(pipeline, topics, joins, now, left_out)) + "\n"


def choose_names(topics: Sequence[str], pipeline: str | None) -> tuple[str, dict[str, str]]:
    """Return the name of the pipeline, unless one is given, and that of each topic's entry.

    >>> choose_names(["shop.public.Order-Items", "shop.public.customers"], None)
    ('shop', {'shop.public.Order-Items': 'order_items', 'shop.public.customers': 'customers'})
    """
    entries: dict[str, str] = {}
    for topic in topics:
        name = _clean_name(topic.rpartition(".")[2]) or _clean_name(topic) or "topic"
        names = (name, f"{name}_topic", _clean_name(topic), *(f"{name}_{n}" for n in range(2, len(topics) + 3)))
        entries[topic] = next(it for it in names if it and it not in FOLDERS and it not in entries.values())
    heads = {_clean_name(topic.partition(".")[0]) for topic in topics}
    own = pipeline or (heads.pop() if len(heads) == 1 else "") or entries[topics[0]]
    if pipeline is None and (own == MAINTENANCE or own.endswith((RELEASE, PREVIEW))):
        own = f"{own}_pipeline"
    return own, entries


def _clean_name(text: str) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text)
    return re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_").lstrip("_0123456789")[:100]


def _list_lines(
    pipeline: str,
    topics: Sequence[TopicDraft],
    joins: Sequence[JoinProposal],
    now: datetime,
    left_out: Sequence[JoinProposal],
) -> Iterator[str]:
    yield _comment(
        f"A draft by `hindcast infer {' '.join(topic.topic for topic in topics)}`, {now:%Y-%m-%d %H:%M} UTC."
    )
    yield "# It is right for the records that were read; others can differ. Change what you know better."
    yield f"pipeline: {quote_text(pipeline)}"
    yield 'schedule: "@daily" # a guess'
    yield f"start: {now:%Y-%m-%d}"
    yield ""
    yield "topics:"
    for number, topic in enumerate(topics):
        if number:
            yield ""
        yield from (f"  {line}" for line in _list_topic_lines(topic))
    yield from _list_view_lines(joins)
    if left_out:
        names = [f"{join.first.name} with {join.table.name}" for join in left_out[:_MOST_NAMED]]
        names += [f"{len(left_out) - _MOST_NAMED:,} more"] if len(left_out) > _MOST_NAMED else []
        yield ""
        yield _comment(f"Left out, as the contract would be too large or invalid, joins of {', '.join(names)}.")


def _list_topic_lines(topic: TopicDraft) -> Iterator[str]:
    yield f"{quote_text(topic.name)}:"
    for note in topic.notes:
        yield f"  {_comment(note)}"
    yield f"  topic: {_quote_name(topic.topic)}"
    yield f"  read: {topic.read} {_comment(topic.read_reason)}"
    for part, columns in (("key", topic.key), ("value", topic.value)):
        yield f"  {part}:"
        yield from (f"    {_format_column(column)}" for column in columns)
    for setting in topic.settings:
        text = f"{setting.text} {_comment(setting.reason)}"
        yield f"  {text}" if setting.in_force else f"  # {text}"
    hidden = {column.name: column.sensitive for column in topic.columns if column.sensitive}
    if hidden:
        reasons = (
            f"{', '.join(n for n in hidden if hidden[n] == reason)}: {reason}"
            for reason in dict.fromkeys(hidden.values())
        )
        yield f"  sensitive: [{', '.join(map(quote_text, hidden))}] {_comment('; '.join(reasons))}"
    yield from (f"  {line}" for line in _list_gate_lines(topic))


def _format_column(column: DraftColumn) -> str:
    kind = column.kind if re.fullmatch(r"[a-z]+", column.kind) else quote_text(column.kind)
    return f"{quote_text(column.name)}: {kind} {_comment(column.reason)}"


def _list_gate_lines(topic: TopicDraft) -> Iterator[str]:
    """Yield gates that all records pass that were read: not null where nothing was, and ranges as comments."""
    whole = [column for column in topic.value if column.never_null][:MAX_GATES]
    ranged = [column for column in topic.value if _has_range(column)][:MAX_GATES]
    if not whole and not ranged:
        return
    yield f"{'' if whole else '# '}expect: # the records that were read pass these; warn stops no run"
    for column in whole:
        yield f"  - expect_column_values_to_not_be_null: {{column: {quote_text(column.name)}}}"
        yield "    on_failure: warn"
    for column in ranged:
        yield f"  # - expect_column_values_to_be_between: {{column: {quote_text(column.name)}, min_value: 0}}"
        yield "  #   on_failure: warn"


def _has_range(column: DraftColumn) -> bool:
    """Return whether a column is of numbers that count or measure something, and none is below 0."""
    is_number = column.kind in ("int", "bigint", "double") or column.kind.startswith("decimal")
    is_id = re.search(r"(^|_)(id|key|code|no|number|ts|time|at)$|(Id|Key|At|Ts|Time)$", column.name) is not None
    return is_number and not is_id and not column.sensitive and column.least is not None and column.least >= 0


def _list_view_lines(joins: Sequence[JoinProposal]) -> Iterator[str]:
    if not joins:
        return
    yield ""
    yield "views:" if any(join.in_force for join in joins) else "# views:"
    for join in joins:
        prefix = "  " if join.in_force else "  # "
        yield from (f"{prefix}{line}" for line in _list_join_lines(join))


_MOST_NAMED = 20


def _list_join_lines(join: JoinProposal) -> Iterator[str]:
    first, table = join.first, join.table
    yield f"{quote_text(join.name)}: {_comment(join.reason)}"
    yield f"  {first.read}: {quote_text(first.name)}"
    on = ", ".join(quote_text(text) for text in join.on)
    on = f"[{on}]" if len(join.on) > 1 else on
    yield f"  join: {{table: {quote_text(table.name)}, on: {on}, how: left}}"
    names = [column.name.lower() for topic in (first, table) for column in (*first.key, *topic.value)]
    if len({*names}) == len(names) - len(first.key):
        return
    yield "  select:"
    taken = {column.name.lower() for column in first.key}
    for topic, columns in ((first, first.value), (table, table.value)):
        for column in columns:
            name = next(it for it in _list_selected_names(topic.name, column.name) if it.lower() not in taken)
            taken.add(name.lower())
            yield f"    {quote_text(name)}: {quote_text(f'{quote_column(topic.name)}.{quote_column(column.name)}')}"


def _list_selected_names(topic: str, column: str) -> Iterator[str]:
    """Yield names for a topic's column in a join, none of which is too long."""
    yield column
    yield f"{topic}_{column}"[:NAME]
    yield from (f"{column[: NAME - 7]}_{n}" for n in range(2, 1_000_000))


def _quote_name(topic: str) -> str:
    is_plain = re.fullmatch(r"[A-Za-z][A-Za-z0-9._-]*", topic) and topic.lower() not in YAML_WORDS
    return topic if is_plain else quote_text(topic)


def _comment(text: str) -> str:
    return f"# {escape_controls(text, LINE_BREAKS)}"
