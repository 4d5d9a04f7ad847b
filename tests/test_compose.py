"""docker-compose.yaml: valid by its schema, and everything that it refers to is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
FILE = ROOT / "docker-compose.yaml"
PORTS = ("HINDCAST_KAFKA_PORT", "HINDCAST_AIRFLOW_PORT")
SECRETS = {
    "POSTGRES_PASSWORD",
    "AIRFLOW_ADMIN_PASSWORD",
    "AIRFLOW_SECRET_KEY",
    "AIRFLOW_JWT_SECRET",
    "AIRFLOW_FERNET_KEY",
}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return loaded


def services(compose: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return list(compose["services"].items())


def test_it_is_valid_by_the_compose_schema() -> None:
    command = [Path(sys.executable).parent / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", FILE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_has_every_part_of_the_platform(compose: dict[str, Any]) -> None:
    airflow = {f"airflow-{part}" for part in ("migrate", "api-server", "scheduler", "dag-processor", "triggerer")}
    assert set(compose["services"]) == airflow | {"postgres", "kafka", "spark-master", "spark-worker", "spark-connect"}


def test_services_depend_on_services_that_can_fulfil_the_condition(compose: dict[str, Any]) -> None:
    for name, service in services(compose):
        for other, wanted in service.get("depends_on", {}).items():
            assert other in compose["services"], f"{name} depends on {other}, which is not there"
            if wanted["condition"] == "service_healthy":
                assert "healthcheck" in compose["services"][other], f"{name} waits for {other}, which has no check"


def test_volumes_and_networks_are_declared_and_bound_folders_are_there(compose: dict[str, Any]) -> None:
    for name, service in services(compose):
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            declared = source in compose["volumes"]
            assert declared or source in {"./schemas", "./dags", "./plugins"}, f"{name}: {source} is nothing we have"
        assert set(service.get("networks", [])) <= set(compose["networks"])
    assert (ROOT / "schemas").is_dir()
    assert (ROOT / "dags").is_dir()


def test_every_service_that_stays_has_a_health_check(compose: dict[str, Any]) -> None:
    assert [name for name, service in services(compose) if "healthcheck" not in service] == ["airflow-migrate"]


def test_all_of_ours_are_one_image_built_here(compose: dict[str, Any]) -> None:
    built = {(s["image"], s["build"]) for name, s in services(compose) if name not in {"postgres", "kafka"}}
    assert built == {("hindcast:local", ".")}
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    for line in re.findall(r"^COPY (?!--)(.+) \S+$", dockerfile, re.MULTILINE):
        assert all((ROOT / source).exists() for source in line.split())


def test_no_secret_has_a_default_and_all_are_explained() -> None:
    text = FILE.read_text(encoding="utf-8")
    comment = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
    required = set(re.findall(r"(?<!\$)\$\{(\w+):\?", text))
    assert required == SECRETS
    assert {name for name in SECRETS if name in comment} == SECRETS
    others = set(re.findall(r"(?<!\$)\$\{(\w+)(?!:\?)\W", text)) - SECRETS
    assert all(name.startswith("HINDCAST_") for name in others)


def test_ports_are_published_to_this_machine_only(compose: dict[str, Any]) -> None:
    published = [port for _, service in services(compose) for port in service.get("ports", [])]
    assert len(published) == 2
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_default_ports_are_those_of_the_settings() -> None:
    from hindcast.settings import settings

    defaults = {name: getattr(settings({}), name.lower().removeprefix("hindcast_")) for name in PORTS}
    text = FILE.read_text(encoding="utf-8")
    for name, port in re.findall(r"\$\{(HINDCAST_\w+_PORT):-(\d+)\}", text):
        assert int(port) == defaults[name]


def test_airflow_knows_every_option_in_it(compose: dict[str, Any]) -> None:
    import airflow

    text = (Path(airflow.__path__[0]) / "config_templates" / "config.yml").read_text(encoding="utf-8")
    known = {
        f"AIRFLOW__{section}__{option}".upper()
        for section, content in yaml.safe_load(text).items()
        for option in content["options"]
    }
    given = {name for _, s in services(compose) for name in s.get("environment", {}) if name.startswith("AIRFLOW__")}
    assert given <= known, f"unknown to Airflow: {sorted(given - known)}"
