"""Operation h: what was true at a moment, of a key and of a range of keys, without Spark, on 20 million rectangles."""

from __future__ import annotations

import os
import statistics
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from bench import pages
from bench.speed import engines
from bench.speed.measuring import Measured
from bench.speed.names import OURS, POINT, SCAN, SPAN

KEYS, ASKED, WIDE = 100_000, 20, 1_000
"""Of so many keys so many are asked for in a round, or so many ranges of so many keys."""


def measure(folder: Path, millions: float, rounds: int) -> list[Measured]:
    """Seconds of a question: in each round the median of questions about keys far apart, in turn with a plain scan.

    Hindcast opens the table for each question anew; files are in the page cache.
    """
    contract, warehouse = _made(folder, millions)
    found = [Measured("h", data, peer) for data in (POINT, SPAN) for peer in (OURS, SCAN)]
    by = {(it.data, it.peer): it for it in found}
    for turn in range(rounds):
        for data, wide in ((POINT, 1), (SPAN, WIDE)):
            taken: dict[str, list[float]] = {OURS: [], SCAN: []}
            for n in range(ASKED):
                key, moment = (n * KEYS) // ASKED + turn, pages.T0 + timedelta(days=n * 0.02 * millions)
                answers = []
                for peer, ask in ((OURS, _ours), (SCAN, _scan)):
                    begun = time.monotonic()
                    answers.append(ask(contract, warehouse, key, key + wide - 1, moment))
                    taken[peer].append(time.monotonic() - begun)
                assert answers[0] == answers[1], f"another result for {key}: {answers}"
            for peer, seconds in taken.items():
                by[data, peer].seconds.append(statistics.median(seconds))
            print(f"h {data:8} round {turn + 1}  {by[data, OURS].seconds[-1] * 1000:.0f} ms", flush=True)
    return found


def _made(folder: Path, millions: float) -> tuple[Any, str]:
    """The contract and the warehouse of a table of so many rectangles, made if it is not there."""
    place = folder / f"h-{millions:g}"
    (place / "schemas").mkdir(parents=True, exist_ok=True)
    (place / "schemas" / "bench.yaml").write_text(pages.CONTRACT.lstrip(), encoding="utf-8")
    os.environ |= {"HINDCAST_WAREHOUSE": str(place / "warehouse"), "HINDCAST_SCHEMAS": str(place / "schemas")}
    if not (place / "done").exists():
        pages.make(int(millions * 1_000_000), KEYS)
        (place / "done").touch()
    from hindcast.common.settings import read_settings
    from hindcast.contract import find

    return find(read_settings().schemas, "bench"), read_settings().warehouse


def _ours(contract: Any, warehouse: str, first: int, last: int, moment: Any) -> tuple[int, int]:
    from hindcast.bitemporal.predicates import Question
    from hindcast.query import read

    one = {"key": [first]} if first == last else {"from_key": [first], "to_key": [last]}
    return _told(read.query(warehouse, contract, "prices", Question(**one, as_of=moment)))  # type: ignore[arg-type]


def _scan(_: Any, warehouse: str, first: int, last: int, moment: Any) -> tuple[int, int]:
    listed = engines.scan(engines.files(Path(warehouse) / "bench" / "prices"))
    with engines.engine() as it:
        text = f"SELECT * FROM {listed} WHERE id BETWEEN ? AND ? AND validFrom <= ? AND systemTo IS NULL"  # noqa: S608
        at = moment.isoformat()
        rows = it.sql(f"{text} AND (validTo IS NULL OR validTo > ?)", params=[first, last, at, at])
        return _told(rows.to_arrow_table())


def _told(rows: Any) -> tuple[int, int]:
    """How many rows, and the sum of keys and prices."""
    return rows.num_rows, sum(rows.column("id").to_pylist()) + sum(rows.column("price").to_pylist())
