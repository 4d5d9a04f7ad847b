"""Commands for a project of contracts: create one, and test its contracts."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from hindcast.cli.commands.shared import open_session
from hindcast.common.errors import ContractError, HindcastError, suggest_nearest
from hindcast.common.plurals import format_count

if TYPE_CHECKING:
    from pathlib import Path

    from hindcast.common.settings import Settings


def test(arguments: argparse.Namespace, settings: Settings) -> int:
    """Run the tests of contracts in schemas/tests/, without a broker; exit code 1 if one of them fails."""
    from hindcast.ops import contract_test_runs

    tests: list[contract_test_runs.PreparedTest] = []
    failed = 0
    for pipeline, path in _find_test_files(settings, arguments.pipelines).items():
        try:
            tests += contract_test_runs.prepare_tests(settings, pipeline, path)
        except HindcastError as error:  # those of other pipelines run
            failed += 1
            print(contract_test_runs.format_load_error(pipeline, error), flush=True)
    count = len(tests) + failed
    if tests:
        spark = open_session(settings, "test", small=True)
        for one in tests:
            result = contract_test_runs.run_test(spark, settings, one)
            failed += not result.has_passed
            print(contract_test_runs.format_result(result), flush=True)
    print(f"{format_count(count, 'test')}: {count - failed:,} passed, {failed:,} failed")
    return 1 if failed else 0


def init(arguments: argparse.Namespace, _: Settings) -> int:
    """Create a project that runs at once: a contract with its tests, a file for Airflow's dags folder, a CI file."""
    from hindcast.ops import new_project

    print(new_project.format_next_steps(new_project.create_project(arguments.folder)))
    return 0


def _find_test_files(settings: Settings, pipelines: list[str]) -> dict[str, Path]:
    """Return the files of tests of these pipelines, of all without any; raise ContractError if there is none."""
    from hindcast.contract.contract_tests import FOLDER, list_test_files

    files, folder = list_test_files(settings.schemas), settings.schemas / FOLDER
    for pipeline in pipelines:
        if pipeline not in files:
            fix = f"write {folder / pipeline}.yaml (docs/contract-tests.md); {suggest_nearest(pipeline, files)}"
            raise ContractError(f"there are no tests of '{pipeline}'", where=str(folder), fix=fix)
    if not files:
        fix = f"write {folder}/PIPELINE.yaml (docs/contract-tests.md)"
        raise ContractError("there are no tests", where=str(folder), fix=fix)
    return {pipeline: files[pipeline] for pipeline in dict.fromkeys(pipelines or sorted(files))}
