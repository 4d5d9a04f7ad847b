"""Columns that existing tables cannot take, or would be widened by, found without Spark before a run writes anything.

Only Spark and Hindcast can read a table whose column was widened and whose files stay (docs/topics/evolution.md). So a
run widens only where the contract says `widen: spark_only`, or `widen: rewrite`. Only Spark knows the type of a view's
expression that is not a plain column; then the step that would widen the table refuses it
(`table_creation.fit_columns`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from deltalake import DeltaTable
from pyspark.sql.types import StructField, StructType

from hindcast.contract import Contract, Shape, list_shapes
from hindcast.contract.field_types import Widen
from hindcast.contract.view_checks import Complaint
from hindcast.store import table_columns, tables
from hindcast.store.columns import ColumnDifference, find_difference, parse_type
from hindcast.store.table_creation import REWRITING, UNFIT_FIX, WIDENING_CHOICE, WIDENING_WARNING, list_other_marks

WidenedColumns = Mapping[str, tuple[str, str]]
"""Columns with their types before and after; fields of structs are written `place.city`."""


def find_widenings(warehouse: str, contract: Contract) -> dict[str, WidenedColumns]:
    """Return the columns that the next run would widen in each table that is not widened yet, as far as known."""
    widenings: dict[str, WidenedColumns] = {}
    known = list_shapes(contract)
    for name in (*contract.topics, *contract.ordered_views):
        delta_table = tables.open_table(tables.locate_table(warehouse, contract, name))
        if (
            delta_table is None
            or table_columns.is_widened(delta_table)
            or tables.read_older_format(delta_table) is not None
        ):
            continue
        if widened := _compare_columns(delta_table, known[name]).widened:
            widenings[name] = widened
    return widenings


def check_key_order(warehouse: str, contract: Contract) -> Iterator[Complaint]:
    """Yield what `check_fit` does of tables whose key has several columns: the contract's hash ignores their order."""
    shapes = list_shapes(contract)
    several = [name for name in (*contract.topics, *contract.ordered_views) if len(shapes[name].key) > 1]
    yield from check_fit(warehouse, contract, several)


def check_fit(warehouse: str, contract: Contract, names: Iterable[str] | None = None) -> Iterator[Complaint]:
    """Yield a complaint for each table that has another kind or key, or a column of a type that does not fit.

    `names`: the topics and views that are checked (default: all).
    """
    known = list_shapes(contract)
    for name in (*contract.topics, *contract.ordered_views) if names is None else names:
        table = tables.locate_table(warehouse, contract, name)
        delta_table = tables.open_table(table)
        if delta_table is None or tables.read_older_format(delta_table) is not None:
            continue
        difference = _compare_columns(delta_table, known[name])
        problems = [*difference.refused.values(), *list_other_marks(delta_table, table)]
        if problems:
            column = next(iter(difference.refused), table.key[0] if table.key else "")
            found = f"the table {name} cannot become what the contract says: {'; '.join(problems)}"
            yield Complaint(_locate_column(contract, name, column), found, UNFIT_FIX)


def _compare_columns(delta_table: DeltaTable, shape: Shape) -> ColumnDifference:
    """Return how the columns whose types are known without Spark differ from those of a table."""
    written = {column: parse_type(kind) for column, kind in shape.columns.items() if kind is not None}
    known = {column: kind for column, kind in written.items() if kind is not None}
    own = [field for field in table_columns.spark_schema(delta_table).fields if field.name in known]
    new = StructType([StructField(column, kind) for column, kind in known.items()])
    return find_difference(StructType(own), new, shape.key)


def check_widening(warehouse: str, contract: Contract) -> Iterator[Complaint]:
    """Yield a complaint if tables would be widened without consent: at the first of them, naming all."""
    widenings = find_widenings(warehouse, contract)
    refused = {name: columns for name, columns in widenings.items() if contract.find_widen(name) == "refuse"}
    if not refused:
        return
    name, widened = next(iter(refused.items()))
    names = " and ".join(refused)
    steps = "; ".join(_describe_columns(other, columns) for other, columns in refused.items())
    yield Complaint(
        _locate_column(contract, name, next(iter(widened))),
        f"{steps}, and the contract does not allow it: {WIDENING_CHOICE}",
        f"write widen: rewrite under {names}, and the whole table is written again; or spark_only, if only Spark "
        "and Hindcast read it; or restore the type, and add a column of the wider type under another name",
    )


def describe_widening(name: str, widened: WidenedColumns, widen: Widen) -> str:
    """Return what would be widened in a table, and what that means for its readers, without the last full stop."""
    effect = REWRITING if widen == "rewrite" else WIDENING_WARNING
    return f"{_describe_columns(name, widened)}. {effect}"


def _describe_columns(name: str, widened: WidenedColumns) -> str:
    steps = ", ".join(f"{column} from {old} to {new}" for column, (old, new) in widened.items())
    return f"{name} would be widened: {steps}"


def _locate_column(contract: Contract, name: str, path: str) -> tuple[str, ...]:
    """Return the location of a table's column in the contract."""
    column = path.partition(".")[0]
    if name in contract.topics:
        return "topics", name, "key" if column in contract.topics[name].key else "value", column
    return "views", name, "select", column
