"""A process that trims or maintains a pipeline, and kills itself with SIGKILL at a step, or in the middle of one.

    python tests/killed_upkeep.py (trim | maintain) PIPELINE SEEN

It ends its whole process group, Spark with it, at the first step that is not in the file SEEN, which it then is. It
exits with 0 if all of its steps were.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from crashes import die_once
from hindcast.ops import file_layout, maintenance, retention
from hindcast.plan import notices
from hindcast.runs import row_counts
from hindcast.store import commit_once, commits, table_creation

STEPS: tuple[tuple[Any, str, int, bool], ...] = (
    *((commits, name, 1, True) for name in ("append_rows", "delete_rows")),
    *((commits, name, 1, False) for name in ("set_properties", "clear_columns")),
    (commit_once, "commit_once", 1, True),
    (row_counts, "write_row_counts", 1, False),
    (table_creation, "ensure_table", 1, False),
    (maintenance, "_run_statement", 2, True),
    (maintenance, "_vacuum_table", 2, True),
    (maintenance, "_remove_old_reports", 1, False),
)
"""What leaves something for good; how often the process is killed before it, and whether also in the middle of it."""


def watch_steps(at: Callable[[str], None]) -> None:
    """Call `at` before steps, and from a thread of its own tenths of a second after they have begun."""
    numbers: dict[str, int] = {}

    def wrap(owner: Any, name: str, often: int, within: bool) -> None:
        real = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            number = numbers[name] = numbers.get(name, 0) + 1
            if number > often:
                return real(*args, **kwargs)
            at(f"before {name} {number}")
            ended = threading.Event()

            def interrupt() -> None:
                if not ended.wait(0.1 * number):
                    at(f"within {name} {number}")

            if within:
                threading.Thread(target=interrupt, daemon=True).start()
            try:
                return real(*args, **kwargs)
            finally:
                ended.set()

        setattr(owner, name, wrapped)

    for step in STEPS:
        wrap(*step)


def main(command: str, pipeline: str, seen: str) -> None:
    """Trim or maintain a pipeline."""
    from hindcast.common.session import open_session
    from hindcast.common.settings import read_settings
    from hindcast.plan.marks import find_bound_contract

    notices.DEAD_AFTER, file_layout.MIN_FILES = 1.0, 2
    spark = open_session("upkeep", {"spark.master": "local[2]", "spark.driver.memory": "1g"}, small=True)
    settings = read_settings()
    contract = find_bound_contract(settings, pipeline)
    watch_steps(partial(die_once, Path(seen)))
    if command == "trim":
        retention.trim_pipeline(spark, contract)
    else:
        maintenance.maintain_tables(lambda: spark, settings, contract)


if __name__ == "__main__":
    main(*sys.argv[1:])
