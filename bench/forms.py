"""`make bench-forms`: what views cost with expressions, filters, other joins and extremes, beside plain ones.

    PYTHONPATH=jobs:scripts .venv/bin/python -m bench.forms [--rounds 7] [--sizes EVENTS,VERSIONS,KEYS] [--plain VIEWS]
        [--plan]

In each round every view is built once, as the step `build` of a first run does it. Printed are medians and ranges:
seconds, and the ratio to the plain view of the same round. With `--plan` each view is also built by Spark's plan alone.
"""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from pathlib import Path

from bench.speed import data, inputs, quick, views
from bench.speed.names import UNIFORM

ROOT = Path(__file__).resolve().parents[1]
FORMS = {
    "priced": ("amounts", "sold", "coded"),
    "stocked": ("stocked_left", "stocked_either", "worth"),
    "categories": ("extremes", "sales"),
    "of_items": ("hourly", "visits"),
    "paired": ("unpaired",),
}
"""By plain view, those that are compared with it: with expressions, a filter, another join, or of a stream."""


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench.forms", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sizes", help="events, versions and keys")
    parser.add_argument("--plain", help="only these plain views, with those that are compared with them")
    parser.add_argument("--plan", action="store_true", help="also by Spark's plan alone")
    parser.add_argument("--folder", type=Path, default=ROOT / "var" / "bench-speed")
    asked = parser.parse_args()
    from hindcast.common.session import open_session

    asked.folder.mkdir(parents=True, exist_ok=True)
    os.environ["HINDCAST_VAR"] = str(asked.folder / "var")
    spark = open_session("hindcast-bench-forms", {"spark.driver.memory": "8g"})
    spark.sparkContext.setLogLevel("ERROR")
    sizes = data.Sizes(*map(int, asked.sizes.split(","))) if asked.sizes else data.FULL
    place = inputs.inputs(asked.folder, sizes)
    inputs.ensure(spark, place, UNIFORM, "events", "prices", "stock", "shipped")
    print(sizes.text, flush=True)
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    forms = {plain: FORMS[plain] for plain in (asked.plain.split(",") if asked.plain else FORMS)}
    for number in range(asked.rounds + 1):
        for view in (name for plain, others in forms.items() for name in (plain, *others)):
            for way in ("on", "off") if asked.plan else ("on",):
                os.environ["HINDCAST_KERNELS"] = way
                it = views.ours(spark, place, UNIFORM, view)
                took = quick.time_run(place.table(UNIFORM, view), it.before, it.run)
                if number:  # the first round warms up
                    seconds[view, way].append(took)
        print(f"round {number} of {asked.rounds}", flush=True)
    for plain, others in forms.items():
        for view, way in ((view, way) for view in (plain, *others) for way in ("on", "off") if seconds[view, way]):
            ratios = [own / base for own, base in zip(seconds[view, way], seconds[plain, "on"], strict=True)]
            by = "kernel" if way == "on" else "Spark's plan"
            timed, relative = quick.format_range(seconds[view, way]), quick.format_range(ratios)
            print(f"{view:16} {by:13} {timed:>22} s {relative:>22} x {plain}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
