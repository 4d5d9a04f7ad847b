"""Vectors of what follows from a retention: the segments of a store, and what Kafka Streams refuses as too short.

    PYTHONPATH=scripts .venv/bin/python tests/retentions.py

writes tests/conformance/retentions/*.json anew, with what the test driver made of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Json = Any
FOLDER = Path(__file__).parent / "conformance" / "retentions"
MINUTE = 60_000
RETENTIONS = (5_999, 6_003, MINUTE, MINUTE + 1, 5 * MINUTE, 5 * MINUTE + 1, 60 * MINUTE, 60 * MINUTE + 1, 600 * MINUTE)
WINDOWS = {
    "tumbling": {"sizeMs": 10},
    "hopping": {"sizeMs": 10, "advanceMs": 3},
    "sliding": {"timeDifferenceMs": 5},
    "session": {"inactivityGapMs": 10},
}


def stores() -> Iterator[Json]:
    """Versions of one key, asked for up to moments close together: an answer misses what ends in a later segment."""
    for retention in RETENTIONS:
        step = max(retention // 60, 1)
        puts = [{"op": "put", "key": "a", "value": n, "timestamp": n * step} for n in range(61)]
        asked = [
            {"op": "query", "key": "a", "from": (n - 4) * step, "to": (n + behind) * step}
            for n in range(4, 61, 7)
            for behind in (0, 2)
        ]
        operation = {"type": "store", "historyRetentionMs": retention}
        yield {"name": f"store/segments-of-{retention}", "operation": operation, "records": puts + asked}


def windows() -> Iterator[Json]:
    """Retentions about the shortest, with which the windows are there and one time that they are not."""
    for kind, lengths in WINDOWS.items():
        needed = {"sliding": 2 * 5, "session": 10}.get(kind, 10) + 3
        for emit in ("update", "on_window_close"):
            for retention in (0, needed - 1, needed):
                window = {"kind": kind, **lengths, "graceMs": 3, "storeRetentionMs": retention}
                operation = {"type": "windowed_aggregate", "aggregation": "count", "window": window, "emit": emit}
                records = [{"topic": "stream", "key": "a", "value": 1, "timestamp": time} for time in (0, 4, 40)]
                name = f"windows/{kind}-{emit}-retained-for-{retention}"
                yield {"name": name, "operation": operation, "records": records}


def _main() -> None:
    import oracle

    FOLDER.mkdir(parents=True, exist_ok=True)
    for family, vectors in (("store", stores()), ("windows", windows())):
        lines = ",\n".join(json.dumps(one) for one in oracle.expected(list(vectors)))
        (FOLDER / f"{family}.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    _main()
