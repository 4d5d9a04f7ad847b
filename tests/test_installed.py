"""The package where there is no checkout: what its wheel has, and what it does in environments of its own.

`make test-versions` runs this. It installs from the package index, which takes a minute or two.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pipelines import RESTAURANT
from test_dags import GATED

ROOT = Path(__file__).parents[1]
UV = Path(sys.prefix) / "bin" / "uv"
CONTRACT = "hindcast/ops/project/contract.yaml.template"
OTHER_AIRFLOW = "3.3.1"
"""A release of Airflow that is not the one of requirements.lock."""

pytestmark = pytest.mark.long


def build_wheel(folder: Path) -> Path:
    """A wheel of this checkout, built from a copy, so that nothing is written into it."""
    source = folder / "source"
    for name in ("jobs", "tools"):
        shutil.copytree(
            ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
    for name in ("pyproject.toml", "LICENSE", "README.md", "ivy.xml", "ivysettings.xml"):
        shutil.copy(ROOT / name, source / name)
    command = [str(UV), "build", "--wheel", "--quiet", "--out-dir", str(folder / "dist"), str(source)]
    subprocess.run(command, env={**os.environ, "SOURCE_DATE_EPOCH": "1767225600"}, check=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def install(folder: Path, *what: str) -> Path:
    """The `bin` of a new environment with these packages."""
    subprocess.run([str(UV), "venv", "--quiet", "--python", sys.executable, str(folder)], check=True)
    add(folder / "bin", *what)
    return folder / "bin"


def add(programs: Path, *what: str) -> None:
    command = [str(UV), "pip", "install", "--quiet", "--python", str(programs / "python"), *what]
    subprocess.run(command, check=True)


def run(programs: Path, place: Path, *command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """What a program of an environment prints in a folder that is no checkout."""
    inherited = {n: v for n, v in os.environ.items() if not n.startswith(("HINDCAST_", "AIRFLOW", "PYTHONPATH"))}
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [str(programs / command[0]), *command[1:]],
        cwd=place,
        env={**inherited, "PATH": path, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_wheel_has_what_it_needs_and_nothing_else(wheel: Path, tmp_path: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    packages = {name.partition("/")[0] for name in names}
    info = next(name for name in packages if name.endswith(".dist-info"))
    assert packages == {"hindcast", "hindcast_conformance", "hindcast_demo", "hindcast_local", info}
    assert {
        "hindcast/setup/ivy.xml",
        "hindcast/py.typed",
        "hindcast/airflow/pages/templates/base.html",
        CONTRACT,
    } <= set(names)
    kinds = {Path(name).suffix for name in names if not name.startswith(info)}
    assert kinds == {".css", ".html", ".js", ".json", ".properties", ".py", ".template", ".typed", ".xml"}
    again = build_wheel(tmp_path)
    assert hashlib.sha256(again.read_bytes()).digest() == hashlib.sha256(wheel.read_bytes()).digest(), "reproducible"


def test_an_empty_environment_has_contracts_queries_and_says_which_extra_is_missing(
    wheel: Path, tmp_path: Path
) -> None:
    programs = install(tmp_path / "env", str(wheel))
    place = tmp_path / "project"
    (place / "schemas").mkdir(parents=True)
    (place / "schemas" / "restaurant.yaml").write_text(RESTAURANT)
    checked = run(programs, place, "hindcast", "check")
    assert (checked.returncode, checked.stderr) == (0, "")
    assert "restaurant.yaml: 2 topics" in checked.stdout
    asked = run(programs, place, "hindcast", "query", "restaurant.menu")
    assert "no run has been completed yet" in asked.stderr
    examined = json.loads(run(programs, place, "hindcast", "doctor", "--format", "json").stdout)
    assert {line["what"] for line in examined["lines"] if line["state"] == "failed"} == {"kafka"}
    for command, extra in {"setup": "spark", "demo": "demo"}.items():
        refused = run(programs, place, "hindcast", *command.split())
        assert (refused.returncode in (1, 2), f"hindcast[{extra}]" in refused.stderr) == (True, True), refused.stderr
    created = run(programs, tmp_path, "hindcast", "init", "exchange")
    assert (created.returncode, created.stderr) == (0, "")
    checked = run(programs, tmp_path / "exchange", "hindcast", "check")
    assert (checked.returncode, "exchange.yaml: 2 topics, 1 view, fine" in checked.stdout) == (0, True)
    (place / "schemas" / "gated.yaml").write_text(GATED)
    refused = run(programs, place, "hindcast", "check")
    assert (refused.returncode, "pip install 'hindcast[quality]'" in refused.stderr) == (1, True), refused.stderr


def test_an_airflow_of_another_release_gets_dags_and_pages_by_two_lines(wheel: Path, tmp_path: Path) -> None:
    programs = install(tmp_path / "env", f"apache-airflow=={OTHER_AIRFLOW}")
    before = list_packages(programs)
    add(programs, f"{wheel}[airflow]")
    changed = {name for name, version in list_packages(programs).items() if before.get(name, version) != version}
    assert changed == set(), "what Airflow brought stays as it is"

    dags = tmp_path / "dags"
    (dags / "schemas").mkdir(parents=True)
    (dags / "schemas" / "gated.yaml").write_text(GATED)
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "install.md").read_text(), re.DOTALL)
    (dags / "our_pipelines.py").write_text(code)
    airflow = {
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    probe = (
        "import json, logging; logging.disable(); from airflow.dag_processing.dagbag import DagBag; "
        f"bag = DagBag({str(dags)!r}); print(json.dumps([bag.import_errors, sorted(bag.dags)]))"
    )
    parse = ("python", "-W", "ignore", "-c", probe)
    (failed, _) = json.loads(run(programs, tmp_path, *parse, **airflow).stdout.splitlines()[-1])
    assert ["HINDCAST_VAR is not set" in error for error in failed.values()] == [True]
    placed = {**airflow, "HINDCAST_VAR": str(tmp_path / "var")}
    failed, parsed = json.loads(run(programs, tmp_path, *parse, **placed).stdout.splitlines()[-1])
    assert (failed, parsed) == ({}, ["gated", "gated__preview", "gated__release", "hindcast_maintenance"])
    plugins = json.loads(run(programs, tmp_path, "airflow", "plugins", "--output", "json", **placed).stdout)
    assert {"hindcast_pages", "hindcast_tasks"} <= {plugin["name"] for plugin in plugins}


def list_packages(programs: Path) -> dict[str, str]:
    command = [str(UV), "pip", "list", "--format", "json", "--python", str(programs / "python")]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {package["name"]: package["version"] for package in json.loads(listed)}


def test_contracts_mean_the_same_with_the_lowest_versions(tmp_path: Path) -> None:
    extras = [option for name in ("quality", "registry", "spark") for option in ("--extra", name)]
    programs = install(
        tmp_path / "env", "--resolution", "lowest-direct", "--requirement", str(ROOT / "pyproject.toml"), *extras
    )
    pinned = (ROOT / "requirements-dev.txt").read_text()
    tools = re.findall(r"^(?:check-jsonschema|fastavro|hypothesis|psutil|pytest\S*)==\S+", pinned, re.MULTILINE)
    add(programs, *tools)
    (tmp_path / "env" / "jars").symlink_to(Path(sys.prefix) / "jars")
    tests = [str(ROOT / "tests" / f"test_{name}.py") for name in ("contracts", "expressions")]
    command = ("python", "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", "not long", *tests)
    done = run(programs, ROOT, *command)
    assert done.returncode == 0, done.stdout
