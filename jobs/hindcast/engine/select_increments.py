"""Increments of views that only select columns and rows of their input: each row of a view is one of the input."""

from __future__ import annotations

import pyarrow as pa

from hindcast.engine import arrow_expressions
from hindcast.engine.increment_rows import ChangedRows, Comparison, Needs, ReadNear, list_among, read_moments
from hindcast.engine.spec import SelectIncrement
from hindcast.store.closing import find_matching_rows


def refresh_selection(form: SelectIncrement, source: ChangedRows, read_view: ReadNear) -> Comparison:
    """Return the rows of a view that come from changed rows of its input."""
    closed, opened = (_select_rows(form, rows) for rows in (source.closed, source.opened))
    key = form.view.key
    return Comparison(_read_rows(form, closed, read_view), opened, units=((closed, key), (opened, key)))


def _select_rows(form: SelectIncrement, rows: pa.Table) -> pa.Table:
    """Return the view's rows of those of the input."""
    own = {name: rows.column(column) for name, column in form.flat.items()}
    periods = {name: rows.column(name) for name in form.view.periods}
    return arrow_expressions.project_rows(form.projection, pa.table(own | periods))


def _read_rows(form: SelectIncrement, closed: pa.Table, read_view: ReadNear) -> pa.Table:
    """Return the view's current rows that are those of rows which were closed in the input."""
    if not closed.num_rows:
        return form.output.types.empty_table()
    start, end = (read_moments(closed, name) for name in (form.view.periods[0], form.view.periods[-1]))
    columns = [name for name in form.identity if name not in form.view.periods]
    needed = list_among(columns, Needs(closed, columns, start, end))
    rows = read_view((int(start.min()), int(end.max())), needed)
    return rows.filter(pa.array(find_matching_rows(rows, closed, form.identity)))
