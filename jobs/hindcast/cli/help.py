"""The help of the command line: its commands in groups, each with an example."""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from collections.abc import Mapping

GROUPS: Mapping[str, tuple[str, ...]] = {
    "write a pipeline": ("init", "infer", "check", "test", "schema"),
    "run it": ("run", "rehearse", "preview", "runs", "report", "abandon"),
    "ask its tables": ("query", "history", "diff", "why", "sql", "compare", "close", "closes", "restate"),
    "decide what was held back": ("failing", "release", "quarantine", "requeue"),
    "keep it healthy": ("doctor", "verify", "ledger", "maintain", "forecast", "trim", "forget", "upgrade", "downgrade"),
    "try it on this machine": ("setup", "completion", "up", "demo", "produce", "down", "conformance"),
}
"""All commands, by what people want to do."""

EXAMPLES: Mapping[str, str] = {
    "init": "hindcast init shop",
    "infer": "hindcast infer orders prices --out schemas/shop.yaml",
    "check": "hindcast check",
    "test": "hindcast test shop",
    "schema": "hindcast schema > contract.schema.json",
    "run": "hindcast run shop --until 2026-02-01",
    "rehearse": "hindcast rehearse shop --from 2026-01-01 --to 2026-07-01 --every month",
    "preview": "hindcast preview shop",
    "runs": "hindcast runs shop",
    "report": "hindcast report shop 3",
    "abandon": "hindcast abandon shop 4",
    "query": "hindcast query shop.bills --as-of 2026-01-01T12:30 --known-at run:1",
    "history": "hindcast history shop.bills --run 3",
    "diff": "hindcast diff shop.bills --run 3",
    "why": "hindcast why shop.bills --key anna --as-of 2026-01-01T12:30",
    "sql": "hindcast sql shop",
    "close": "hindcast close shop 2026-Q3 --from 2026-07-01 --to 2026-10-01",
    "closes": "hindcast closes shop",
    "restate": "hindcast restate shop 2026-Q3",
    "compare": "hindcast compare shop.totals --topic totals-output",
    "failing": "hindcast failing shop --held",
    "release": "hindcast release shop.prices --key tea",
    "quarantine": "hindcast quarantine shop --topic orders",
    "requeue": "hindcast requeue shop --topic orders --dry-run",
    "doctor": "hindcast doctor",
    "verify": "hindcast verify shop --quick",
    "ledger": "hindcast ledger shop --format csv",
    "maintain": "hindcast maintain shop --dry-run",
    "forecast": "hindcast forecast shop",
    "trim": "hindcast trim shop --dry-run",
    "forget": "hindcast forget shop.orders --key anna --dry-run",
    "upgrade": "hindcast upgrade shop.prices",
    "downgrade": "hindcast downgrade shop.prices --to timestamped",
    "setup": "hindcast setup",
    "completion": "source <(hindcast completion bash)",
    "up": "hindcast up",
    "demo": "hindcast demo",
    "produce": "hindcast produce orders records.jsonl --partitions 3",
    "down": "hindcast down",
    "conformance": "hindcast conformance vectors --out results.json",
}

_NAME_WIDTH = 2 + max(map(len, EXAMPLES)) + 2


class GroupedParser(argparse.ArgumentParser):
    """A parser whose help lists commands (`add_summary`) in `GROUPS`."""

    summaries: dict[str, str]

    def add_summary(self, command: str, text: str) -> None:
        """Set the text of a command; its first clause is shown."""
        self.summaries = {**getattr(self, "summaries", {}), command: re.split(r"[:;(]|\.$", text)[0].strip()}

    def format_help(self) -> str:
        """Return the help, as wide as the terminal."""
        width = shutil.get_terminal_size().columns
        lines = [self.format_usage(), textwrap.fill(self.description or "", width)]
        for group, commands in GROUPS.items():
            lines += ["", f"{group}:"]
            for command in commands:
                first = f"  {command}".ljust(_NAME_WIDTH)
                lines.append(textwrap.fill(first + self.summaries[command], width, subsequent_indent=" " * _NAME_WIDTH))
        lines += ["", textwrap.fill("`hindcast COMMAND --help` explains a command, with an example.", width), ""]
        return "\n".join(lines)
