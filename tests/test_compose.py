"""docker-compose.yaml: valid by its schema, and everything that it refers to is there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import uuid
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from dockerfile import parse_stages

ROOT = Path(__file__).parent.parent
FILE = ROOT / "docker-compose.yaml"
PORTS = ("HINDCAST_KAFKA_PORT", "HINDCAST_AIRFLOW_PORT")
SECRETS = {
    "POSTGRES_PASSWORD",
    "OBJECT_STORE_SECRET",
    "AIRFLOW_ADMIN_PASSWORD",
    "AIRFLOW_SECRET_KEY",
    "AIRFLOW_JWT_SECRET",
    "AIRFLOW_FERNET_KEY",
    "SPARK_CONNECT_AUTHENTICATE_TOKEN",
}


ENDING = {"airflow-migrate", "object-store-folders"}
"""Services that do one thing and end."""

THEIRS = {
    "postgres": {"pg_isready"},
    "kafka": {"/opt/kafka/bin/kafka-broker-api-versions.sh"},
    "object-store": {"wget"},
}
"""Services of images that are not ours, and the programs of these that we use (Debian's, Kafka's, Alpine's)."""

GIGABYTES = {"m": 1 / 1024, "g": 1}


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


@pytest.mark.cluster
@pytest.mark.long
def test_compose_itself_resolves_every_reference_and_starts_nothing_without_secrets() -> None:
    import cluster

    from hindcast.common.session import venv_folder

    program = cluster.composer(venv_folder())
    if not program.exists():
        pytest.skip("no program of Compose's library here (make test-cluster builds it)")

    def said(text: str, **secrets: str) -> str:
        file = ROOT / f".compose-{uuid.uuid4().hex}.yaml"  # beside it: folders are bound from there
        file.write_text(text, encoding="utf-8")
        try:
            return subprocess.run([program, file], env=secrets, capture_output=True, text=True, check=False).stderr
        finally:
            file.unlink()

    text, secrets = FILE.read_text(encoding="utf-8"), dict.fromkeys(SECRETS, "x")
    assert said(text, **secrets) == ""
    waits = "      {}:\n        condition"
    assert "undefined service" in said(text.replace(waits.format("spark-worker"), waits.format("other")), **secrets)
    assert "undefined volume" in said(text.replace("  objects: {}\n", ""), **secrets)
    for name in SECRETS:
        assert f"required variable {name} is missing" in said(text, **{n: v for n, v in secrets.items() if n != name})


def test_it_has_every_part_of_the_platform(compose: dict[str, Any]) -> None:
    airflow = {f"airflow-{part}" for part in ("migrate", "api-server", "scheduler", "dag-processor", "triggerer")}
    spark = {f"spark-{part}" for part in ("master", "worker", "connect")}
    store = {"object-store", "object-store-folders"}
    assert set(compose["services"]) == airflow | spark | store | {"postgres", "kafka"}
    assert compose["services"]["spark-worker"]["deploy"]["replicas"] == 2


def test_services_depend_on_services_that_can_fulfil_the_condition(compose: dict[str, Any]) -> None:
    for name, service in services(compose):
        for other, wanted in service.get("depends_on", {}).items():
            assert other in compose["services"], f"{name} depends on {other}, which is not there"
            if wanted["condition"] == "service_healthy":
                assert "healthcheck" in compose["services"][other], f"{name} waits for {other}, which has no check"
            if wanted["condition"] == "service_completed_successfully":
                assert other in ENDING, f"{name} waits for the end of {other}, which stays"


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
    assert {name for name, service in services(compose) if "healthcheck" not in service} == ENDING


def test_all_of_ours_are_one_image_built_here(compose: dict[str, Any]) -> None:
    built = {(s["image"], s["build"]) for name, s in services(compose) if name not in THEIRS}
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
    from hindcast.common.settings import read_settings

    defaults = {name: getattr(read_settings({}), name.lower().removeprefix("hindcast_")) for name in PORTS}
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


def amount(text: str) -> float:
    """An amount of memory, as 2g or 512m, in gibibytes."""
    return int(text[:-1]) * GIGABYTES[text[-1]]


def test_images_that_are_not_ours_are_of_one_version(compose: dict[str, Any]) -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    images = {name: compose["services"][name]["image"] for name in THEIRS}
    images |= {f"stage {stage.name}": stage.base for stage in parse_stages(dockerfile)}
    loose = {n: i for n, i in images.items() if not re.fullmatch(r"[a-z/]+:v?\d+(\.\d+){1,2}(-[a-z]+)*", i)}
    assert not loose, f"no exact version: {loose}"
    assert "latest" not in dockerfile


def test_the_broker_and_the_store_are_of_the_versions_that_tests_run(compose: dict[str, Any]) -> None:
    import cluster

    ivy = (ROOT / "ivy.xml").read_text(encoding="utf-8")
    broker = re.findall(r'name="kafka_2.13" rev="([\d.]+)"', ivy)
    assert compose["services"]["kafka"]["image"] == f"apache/kafka:{broker[0]}"
    assert compose["services"]["object-store"]["image"] == f"versity/versitygw:{cluster.STORE.partition('@')[2]}"


def test_nobody_is_root_or_can_become_root(compose: dict[str, Any]) -> None:
    for name, service in services(compose):
        assert service["user"].partition(":")[0] not in {"", "0", "root"}, name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["cap_drop"] == ["ALL"], name
        assert not {"privileged", "cap_add", "network_mode", "pid"} & set(service), name
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    user = compose["services"]["object-store"]["user"].partition(":")[0]
    assert f"useradd --create-home --uid {user} hindcast" in dockerfile  # who made the store's folder
    assert re.findall(r"^USER (\w+)$", dockerfile, re.MULTILINE) == ["hindcast"]
    assert {compose["services"][name]["user"] for name in compose["services"] if name not in THEIRS} == {"hindcast"}


def test_everything_has_limits_and_what_a_jvm_may_take_fits_in_them(compose: dict[str, Any]) -> None:
    for name, service in services(compose):
        limits = service["deploy"]["resources"]["limits"]
        assert set(limits) == {"cpus", "memory", "pids"}, name
        command = [str(part) for part in service.get("command", [])]
        told = map(str, service.get("environment", {}).values())
        heaps = [amount(value.removeprefix("-Xmx")) for value in told if value.startswith("-Xmx")]
        if name == "spark-worker":
            heaps.append(amount(command[command.index("--memory") + 1]) + amount("512m"))
            assert int(command[command.index("--cores") + 1]) <= float(limits["cpus"])
        if name == "spark-connect":
            heaps.append(amount(service["environment"]["HINDCAST_SPARK_MEMORY"]))
        assert all(heap < amount(limits["memory"]) for heap in heaps), name
    executor = next(p for p in compose["services"]["spark-connect"]["command"] if "spark.executor.memory" in p)
    worker = compose["services"]["spark-worker"]["command"]
    assert amount(executor.partition("=")[2]) <= amount(worker[worker.index("--memory") + 1])


def test_what_is_read_only_has_room_for_what_it_writes(compose: dict[str, Any]) -> None:
    closed = {name: service.get("tmpfs", []) for name, service in services(compose) if service.get("read_only")}
    ours = {name: ["/tmp"] for name in compose["services"] if name not in THEIRS}  # noqa: S108  # a container's
    assert closed == {"object-store": [], **ours}


def test_commands_and_health_checks_are_programs_of_their_image(compose: dict[str, Any]) -> None:
    ours = Path(sys.executable).parent
    debian = {"bash", "mkdir", "tini"}
    for name, service in services(compose):
        kind, program, *_ = service.get("healthcheck", {}).get("test", ["CMD", ""])
        wanted = {program.split()[0] if kind == "CMD-SHELL" else program} - {""}
        if name in THEIRS:
            assert wanted <= THEIRS[name], name
            continue
        wanted.add(service["command"][0])
        missing = {it for it in wanted if not (ours / it).exists()} - debian
        assert not missing, f"{name}: {missing} are neither in the virtual environment nor of Debian"


def test_addresses_are_those_of_services_of_the_file(compose: dict[str, Any]) -> None:
    text = FILE.read_text(encoding="utf-8")
    named = set(re.findall(r"(?:http://|spark://|@)([a-z][a-z-]+)(?=[:/\"])", text))
    assert named >= {"postgres", "object-store", "spark-master", "airflow-api-server"}
    assert named - set(compose["services"]) <= {"localhost"}
    for _, service in services(compose):
        for connection in (v for n, v in service.get("environment", {}).items() if n.startswith("AIRFLOW_CONN_")):
            assert json.loads(connection)["host"].removeprefix("spark://") in compose["services"]


def test_spark_connect_has_what_a_session_has_of_the_store(compose: dict[str, Any]) -> None:
    from hindcast.common.object_store import spark_properties

    service = compose["services"]["spark-connect"]
    command = service["command"]
    given = dict(value.split("=", 1) for flag, value in pairwise(command) if flag == "--conf")
    wanted = spark_properties(service["environment"]["HINDCAST_WAREHOUSE"], service["environment"])
    assert wanted
    assert wanted.items() <= given.items()


def test_the_store_and_its_clients_name_each_other_alike(compose: dict[str, Any]) -> None:
    store = compose["services"]["object-store"]["environment"]
    for name, service in services(compose):
        if name not in THEIRS and name not in ENDING:
            environment = service["environment"]
            assert environment["AWS_ACCESS_KEY_ID"] == store["ROOT_ACCESS_KEY"], name
            assert environment["AWS_SECRET_ACCESS_KEY"] == store["ROOT_SECRET_KEY"], name
    bucket = compose["services"]["airflow-scheduler"]["environment"]["HINDCAST_WAREHOUSE"].split("/")[2]
    assert compose["services"]["object-store-folders"]["command"][-1] == f"/opt/hindcast/objects/{bucket}"
