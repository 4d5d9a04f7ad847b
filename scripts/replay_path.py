"""Count a topic's way through a replay: the functions and modules that it passes, and the calls into a higher room.

    .venv/bin/python scripts/replay_path.py [--list]

Runs `run_steps.replay_topic` of the example's menu on a broker and a Spark session of its own, with a profiler on the
driver: functions that Spark calls in its workers are not counted, nor are `common` and
`contract`, which everything uses.
Rooms are those of docs/architecture.md, from the top down.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = ROOT / "jobs" / "hindcast"


def main() -> int:
    from hindcast.common.session import open_session
    from hindcast.common.settings import read_settings
    from hindcast.kafka import produce
    from hindcast.runs import run_steps
    from hindcast_demo import restaurant
    from hindcast_local.broker import run_broker

    with tempfile.TemporaryDirectory() as folder, run_broker(Path(folder) / "broker") as servers:
        (Path(folder) / "schemas").mkdir()
        shutil.copy(ROOT / "schemas" / "restaurant.yaml", Path(folder) / "schemas")
        os.environ |= {"HINDCAST_VAR": folder, "HINDCAST_SCHEMAS": f"{folder}/schemas", "HINDCAST_KAFKA": servers}
        records = restaurant.first_records()
        produce.create_topics(servers, *records)
        for topic, sent in records.items():
            produce.send_records(servers, topic, sent)
        spark = open_session("replay-path", {"spark.master": "local[2]"}, small=True)
        settings = read_settings()
        number = run_steps.plan_run(settings, "restaurant", "path")
        path = ReplayPath()
        with path.profile():
            run_steps.replay_topic(spark, settings, "restaurant", number, "menu")
        spark.stop()
    print(f"functions {len(path.functions)}, modules {len(path.modules)}, calls into a higher room {len(path.climbs)}")
    if "--list" in sys.argv:
        print(*sorted(path.functions), "", *sorted(path.climbs), sep="\n")
    return 0


class ReplayPath:
    """What the profiler has seen: `module.function` of the library, and calls `caller -> callee` that climb."""

    def __init__(self) -> None:
        self.functions: set[str] = set()
        self.modules: set[str] = set()
        self.climbs: set[str] = set()
        text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
        rooms = re.findall(r"^\| `([a-z_]+)/?` \|", text, re.MULTILINE)
        self._floor = {room: number for number, room in enumerate(rooms)}

    @contextmanager
    def profile(self) -> Iterator[None]:
        sys.setprofile(self._see)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _see(self, frame: FrameType, event: str, _argument: object) -> None:
        callee = _locate(frame)
        if event != "call" or callee is None:
            return
        module, function = callee
        if module.split(".")[0] not in ("common", "contract"):
            self.functions.add(f"{module}.{function}")
            self.modules.add(module)
        outer = frame.f_back
        while outer is not None and _locate(outer) is None:
            outer = outer.f_back
        caller = _locate(outer) if outer is not None else None
        if caller and self._floor[module.split(".")[0]] < self._floor[caller[0].split(".")[0]]:
            self.climbs.add(f"{caller[0]}.{caller[1]} -> {module}.{function}")


def _locate(frame: FrameType) -> tuple[str, str] | None:
    """Return the module (without `hindcast.`) and the named function of a frame; None outside of the library."""
    path, name = Path(frame.f_code.co_filename), frame.f_code.co_name
    if not path.is_relative_to(LIBRARY) or name.startswith("<"):
        return None
    return ".".join(path.relative_to(LIBRARY).with_suffix("").parts), name


if __name__ == "__main__":
    sys.exit(main())
