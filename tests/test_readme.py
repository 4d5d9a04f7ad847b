"""Every command of the README is run, in the README's order, on real parts, and must print what the README says.

    .venv/bin/python tests/test_readme.py     writes into the README what its commands print now

`text` blocks are drawings, all others are commands or files (walkthrough.py). So no command goes without a test.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import walkthrough
from walkthrough import ROOT, Done, File

README = ROOT / "README.md"
FILES = ("yaml", "json")
"""Languages of the blocks that are files."""


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[Done]]]:
    checkout = tmp_path_factory.mktemp("hindcast")
    yield checkout, walkthrough.follow([README], checkout, walkthrough.free_ports())
    shutil.rmtree(checkout / "var", ignore_errors=True)


@pytest.mark.long
@pytest.mark.parametrize(
    "n", range(len(walkthrough.commands([README]))), ids=[command.line for command in walkthrough.commands([README])]
)
def test_a_command_prints_what_the_readme_says(n: int, followed: tuple[Path, list[Done]]) -> None:
    walkthrough.check([README], n, *followed)


def test_every_block_is_run_or_is_a_file_or_a_drawing() -> None:
    blocks = walkthrough.blocks(README)
    assert {block.language for block in blocks} == {"console", *FILES, "text"}
    assert all(block.file for block in blocks if block.language in FILES)
    assert all(block.lines[0].startswith("$ ") for block in blocks if block.language == "console")
    assert README.read_text(encoding="utf-8").count("```") == 2 * len(blocks)


def test_the_example_makes_files_that_are_not_there() -> None:
    assert not [
        step.name for step in walkthrough.steps([README]) if isinstance(step, File) and (ROOT / step.name).exists()
    ]


if __name__ == "__main__":
    walkthrough.write(README)
