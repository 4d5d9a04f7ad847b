"""The tutorial and the how-to pages, followed one after the other: every command prints what its page says.

.venv/bin/python tests/test_guides.py     writes into the pages what their commands print now
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import walkthrough
from walkthrough import ROOT, Done, File

NAMES = ("first-pipeline", "late-correction", "backfill", "failed-gate", "from-dbt-snapshots", "from-kafka-streams")
GUIDES = [ROOT / "docs/tutorial.md", *(ROOT / f"docs/howto/{name}.md" for name in NAMES)]
COMMANDS = walkthrough.commands(GUIDES)


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[Done]]]:
    checkout = tmp_path_factory.mktemp("hindcast")
    yield checkout, walkthrough.follow(GUIDES, checkout, walkthrough.free_ports())
    shutil.rmtree(checkout / "var", ignore_errors=True)


@pytest.mark.long
@pytest.mark.parametrize("n", range(len(COMMANDS)), ids=[f"{command.page}: {command.line}" for command in COMMANDS])
def test_a_command_prints_what_its_page_says(n: int, followed: tuple[Path, list[Done]]) -> None:
    walkthrough.check(GUIDES, n, *followed)


def test_every_how_to_is_followed() -> None:
    assert sorted(GUIDES[1:]) == sorted((ROOT / "docs/howto").glob("*.md"))


def test_the_pages_make_files_that_are_not_there() -> None:
    made = [step.name for step in walkthrough.steps(GUIDES) if isinstance(step, File)]
    assert not [name for name in made if (ROOT / name).exists()]


if __name__ == "__main__":
    walkthrough.write(*GUIDES)
