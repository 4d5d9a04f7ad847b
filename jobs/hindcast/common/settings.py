"""Settings: where things are and where they listen, from the environment.

| variable              | default                         | meaning                                                   |
| --------------------- | ------------------------------- | --------------------------------------------------------- |
| HINDCAST_ROOT         | the checkout, or else the current folder | where schemas/, dags/ and plugins/ are |
| HINDCAST_VAR          | <HINDCAST_ROOT>/var             | run-time state: warehouse, broker, Airflow, logs |
| HINDCAST_WAREHOUSE    | <HINDCAST_VAR>/warehouse        | the Delta tables: a folder, or the URI of an object store |
| HINDCAST_REPORTS      | <HINDCAST_VAR>/reports          | a page and its JSON for each run |
| HINDCAST_SCHEMAS      | <HINDCAST_ROOT>/schemas         | the contracts |
| HINDCAST_TARGET       | none                            | the target of targets.yaml beside the contracts |
| HINDCAST_KAFKA        | 127.0.0.1:<HINDCAST_KAFKA_PORT> | bootstrap servers |
| HINDCAST_SCHEMA_REGISTRY | none                         | URL of the schema registry, for Avro records |
| HINDCAST_KAFKA_PORT   | 19392                           | port of the broker that `make up` starts |
| HINDCAST_AIRFLOW_PORT | 18380                           | port of the Airflow UI that `make up` starts |
| HINDCAST_SPARK_PORT   | 15392                           | port of the Spark Connect server that `make up` starts |
| HINDCAST_SPARK        | connect                         | how Airflow runs Spark work: `connect` or `submit` |
| HINDCAST_SPARK_MEMORY | a third of the machine's memory | heap of a Spark driver, as `4g` or `900m` |
| HINDCAST_CHUNK        | 2000000                         | about how many offsets of a topic a run commits at a time |
| HINDCAST_KERNELS      | on                              | whether kernels derive views where they can: `on` or `off` |
| HINDCAST_POOL         | default_pool                    | Airflow's pool for Spark work; `make up` makes it |
| HINDCAST_USERS        | admin:admin                     | who logs in to Airflow's UI, as `ann:admin,bob:viewer` |
| HINDCAST_UMASK        | 077                             | the rights to our files that others lack: a umask |
| HINDCAST_MAINTENANCE  | @daily                          | when Airflow maintains tables: cron, or `never` |
| HINDCAST_TIME_TRAVEL  | 7                               | how many days old Delta versions stay readable |
| HINDCAST_KEEP_REPORTS | 0                               | how many days reports are kept; 0: for ever |
| HINDCAST_LOG          | text                            | `json`: what each step does, as JSON lines on stderr |
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hindcast.common import cron
from hindcast.common.errors import SettingsError
from hindcast.common.targets import Choice, read_target

DEFAULT_POOL = "default_pool"
"""Airflow's own pool, which always exists."""

SCHEMAS_VARIABLE, TARGET_VARIABLE = "HINDCAST_SCHEMAS", "HINDCAST_TARGET"

_CHECKOUT = Path(__file__).resolve().parents[3]
"""Our own checkout, if this module is in one, and not in an installed package."""


@dataclass(frozen=True)
class Settings:
    """One reading of the environment; the fields are the table above, in its order."""

    root: Path
    var: Path
    warehouse: str
    reports: Path
    schemas: Path
    target: str
    kafka: str
    schema_registry: str
    kafka_port: int
    airflow_port: int
    spark_port: int
    spark: Literal["connect", "submit"]
    spark_memory: str
    chunk: int
    kernels: bool
    pool: str
    users: str
    umask: int
    maintenance: str
    time_travel: int
    keep_reports: int
    log: Literal["text", "json"]
    variables: tuple[tuple[str, str], ...] = ()
    """The variables of contracts that the command line gives (--var), which are in no environment."""

    @property
    def choice(self) -> Choice:
        """What contracts are loaded with: the target and variables."""
        return Choice(self.target, self.variables)

    @property
    def contract_environment(self) -> dict[str, str]:
        """The variables that make another process load the same contracts."""
        return {SCHEMAS_VARIABLE: str(self.schemas), TARGET_VARIABLE: self.target}

    @property
    def own_environment(self) -> dict[str, str]:
        """The same, as far as the environment says otherwise."""
        env = os.environ
        given = {SCHEMAS_VARIABLE: str(_parse_schemas(env, self.root)), TARGET_VARIABLE: env.get(TARGET_VARIABLE) or ""}
        return {name: value for name, value in self.contract_environment.items() if value != given[name]}

    @property
    def logs(self) -> Path:
        """The folder for the logs of processes that we start."""
        return self.var / "logs"

    def refuse_unknown_place(self) -> None:
        """Raise SettingsError if only the current folder says where tables and reports are: Airflow's processes have
        different ones.
        """
        if not (is_checkout() or os.environ.get("HINDCAST_VAR") or os.environ.get("HINDCAST_ROOT")):
            fix = (
                "set it, for each of Airflow's processes, to a folder that they share: reports are kept there, and "
                "without HINDCAST_WAREHOUSE the tables too"
            )
            raise SettingsError("HINDCAST_VAR is not set", fix=fix)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that make another process read the same settings."""
        return {
            "HINDCAST_ROOT": str(self.root),
            "HINDCAST_VAR": str(self.var),
            "HINDCAST_WAREHOUSE": self.warehouse,
            "HINDCAST_REPORTS": str(self.reports),
            **self.contract_environment,
            "HINDCAST_KAFKA": self.kafka,
            "HINDCAST_SCHEMA_REGISTRY": self.schema_registry,
            "HINDCAST_KAFKA_PORT": str(self.kafka_port),
            "HINDCAST_AIRFLOW_PORT": str(self.airflow_port),
            "HINDCAST_SPARK_PORT": str(self.spark_port),
            "HINDCAST_SPARK": self.spark,
            "HINDCAST_SPARK_MEMORY": self.spark_memory,
            "HINDCAST_CHUNK": str(self.chunk),
            "HINDCAST_KERNELS": "on" if self.kernels else "off",
            "HINDCAST_POOL": self.pool,
            "HINDCAST_USERS": self.users,
            "HINDCAST_UMASK": f"{self.umask:03o}",
            "HINDCAST_MAINTENANCE": self.maintenance,
            "HINDCAST_TIME_TRAVEL": str(self.time_travel),
            "HINDCAST_KEEP_REPORTS": str(self.keep_reports),
            "HINDCAST_LOG": self.log,
        }


def read_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings that the environment has now; SettingsError if a variable is invalid."""
    env = os.environ if environ is None else environ
    root = _parse_path(env, "HINDCAST_ROOT", _CHECKOUT if is_checkout() else Path.cwd())
    var = _parse_path(env, "HINDCAST_VAR", root / "var")
    kafka_port = _parse_port(env, "HINDCAST_KAFKA_PORT", 19392)
    schemas, target = _parse_schemas(env, root), env.get(TARGET_VARIABLE) or ""
    warehouse, reports = _find_places(env, root, var, schemas, target)
    return Settings(
        root=root,
        var=var,
        warehouse=_tables(warehouse),
        reports=reports,
        schemas=schemas,
        target=target,
        kafka=_parse_kafka(env, f"127.0.0.1:{kafka_port}"),
        schema_registry=_parse_registry(env),
        kafka_port=kafka_port,
        airflow_port=_parse_port(env, "HINDCAST_AIRFLOW_PORT", 18380),
        spark_port=_parse_port(env, "HINDCAST_SPARK_PORT", 15392),
        spark=_parse_spark(env),
        spark_memory=_parse_memory(env),
        chunk=_parse_chunk(env),
        kernels=_parse_switch(env, "HINDCAST_KERNELS"),
        pool=env.get("HINDCAST_POOL") or DEFAULT_POOL,
        users=_parse_users(env),
        umask=_parse_umask(env),
        maintenance=_parse_maintenance(env),
        time_travel=_parse_days(env, "HINDCAST_TIME_TRAVEL", 7, least=1),
        keep_reports=_parse_days(env, "HINDCAST_KEEP_REPORTS", 0, least=0),
        log=_parse_log(env),
    )


def is_checkout() -> bool:
    """Return whether this code is in our own checkout, and not in an installed package."""
    return (_CHECKOUT / "jobs" / "hindcast").is_dir()


@contextlib.contextmanager
def use_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment during the block, such as `Settings.contract_environment`."""
    former = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in former.items():
            if value is not None:
                os.environ[name] = value
            else:
                del os.environ[name]


def setup_command() -> str:
    """Return the command that installs what is missing for Spark."""
    return "make setup" if is_checkout() else "hindcast setup"


def _parse_path(env: Mapping[str, str], name: str, default: Path) -> Path:
    return Path(env.get(name) or default).expanduser().absolute()


def _find_places(env: Mapping[str, str], root: Path, var: Path, schemas: Path, target: str) -> tuple[str, Path]:
    """Return where tables and reports are: as the target says, else the environment.

    A target with a warehouse of its own has reports of its own: of pipelines of the same names.
    """
    warehouse = env.get("HINDCAST_WAREHOUSE") or str(var / "warehouse")
    reports = _parse_path(env, "HINDCAST_REPORTS", var / "reports")
    if not target:
        return warehouse, reports
    its = read_target(schemas, target)
    if its.reports is not None:
        reports = root / Path(its.reports).expanduser()
    elif its.warehouse is not None and reports.name != target:
        reports = reports / target
    if its.warehouse is not None:
        warehouse = its.warehouse if "://" in its.warehouse else str(root / Path(its.warehouse).expanduser())
    return warehouse, reports


def _parse_schemas(env: Mapping[str, str], root: Path) -> Path:
    return _parse_path(env, SCHEMAS_VARIABLE, root / "schemas")


def _tables(warehouse: str) -> str:
    """Return the warehouse as it is named everywhere; SettingsError for credentials or odd signs in it."""
    # First: other errors show the address, as every path does. A secret may have a slash. Azure's is container@account.
    is_azure = re.fullmatch(r"(abfss?|wasbs?)://[\w$-]+@[\w.-]+(/.*)?", warehouse, re.DOTALL)
    if not is_azure and re.match(r"[^/]*://[^/]*(@|:(?!\d+(/|$)).*@)", warehouse, re.DOTALL):
        fix = "leave them out: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY have them (docs/deploy.md)"
        raise SettingsError("HINDCAST_WAREHOUSE has credentials in its address", fix=fix)
    place = warehouse if "://" in warehouse else str(Path(warehouse).expanduser().absolute())
    if re.search("[\ud800-\udfff]", place):
        fix = "set HINDCAST_WAREHOUSE, or HINDCAST_VAR, to a folder whose whole path is UTF-8 text"
        raise SettingsError(f"the warehouse is '{_shorten(place)}', which is not UTF-8 text", fix=fix)
    if found := re.search(r"[#?%`\\]", place):  # Delta's readers take them for parts of a URL, or of SQL
        fix = "set HINDCAST_WAREHOUSE, or HINDCAST_VAR, to a folder without it"
        raise SettingsError(f"the warehouse is '{_shorten(place)}', and has {found[0]} in its path", fix=fix)
    return place


def _parse_kafka(env: Mapping[str, str], default: str) -> str:
    text = env.get("HINDCAST_KAFKA") or default
    refuse_credentials(text, "HINDCAST_KAFKA")
    return text


def refuse_credentials(servers: str, where: str) -> None:
    """Raise SettingsError, which does not show them, if addresses of brokers have credentials."""
    if "@" in servers:
        fix = (
            "give them as HINDCAST_KAFKA_USERNAME and HINDCAST_KAFKA_PASSWORD, or as login and password of the "
            "connection (docs/security.md)"
        )
        raise SettingsError(f"{where} has credentials in an address", fix=fix)


def _parse_port(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name) or str(default)
    if (port := _parse_number(text)) is None or not 0 < port < 65536:
        raise SettingsError(f"{name} is '{_shorten(text)}', not a port", fix=f"set {name} to a number from 1 to 65535")
    return port


def _parse_number(text: str) -> int | None:
    """Return the number that a text of at most 18 digits represents; None for another text."""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def _shorten(text: str) -> str:
    """Return the text of a setting, shortened for an error."""
    return text if len(text) <= 60 else f"{text[:40]}... ({len(text):,} characters)"


def _parse_registry(env: Mapping[str, str]) -> str:
    text = env.get("HINDCAST_SCHEMA_REGISTRY") or ""
    if text and not re.fullmatch(r"https?://[^@\s]+", text):
        raise SettingsError(
            "HINDCAST_SCHEMA_REGISTRY is not the URL of a schema registry without credentials",
            fix="write https://host:port; put user and password into HINDCAST_SCHEMA_REGISTRY_USER and "
            "HINDCAST_SCHEMA_REGISTRY_PASSWORD",
        )
    return text.rstrip("/")


def _parse_spark(env: Mapping[str, str]) -> Literal["connect", "submit"]:
    match env.get("HINDCAST_SPARK") or "connect":
        case "connect":
            return "connect"
        case "submit":
            return "submit"
        case other:
            raise SettingsError(
                f"HINDCAST_SPARK is '{other}', not a way to run Spark work",
                fix="set it to 'connect' (one shared Spark Connect server) or 'submit' (spark-submit for each task)",
            )


def _parse_switch(env: Mapping[str, str], name: str) -> bool:
    text = env.get(name) or "on"
    if text not in ("on", "off"):
        raise SettingsError(f"{name} is '{text}'", fix=f"set {name} to 'on' or 'off'")
    return text == "on"


def _parse_log(env: Mapping[str, str]) -> Literal["text", "json"]:
    match env.get("HINDCAST_LOG") or "text":
        case "text":
            return "text"
        case "json":
            return "json"
        case other:
            raise SettingsError(f"HINDCAST_LOG is '{other}'", fix="set HINDCAST_LOG to 'text' or 'json'")


def _parse_memory(env: Mapping[str, str]) -> str:
    text = env.get("HINDCAST_SPARK_MEMORY")
    if not text:
        return f"{min(max(_read_machine_mebibytes() // 3, 1024), 16384)}m"
    if not re.fullmatch(r"[1-9][0-9]{0,8}[gm]", text):
        raise SettingsError(
            f"HINDCAST_SPARK_MEMORY is '{_shorten(text)}', not an amount of memory",
            fix="write a number of gibibytes or mebibytes, such as 4g or 900m",
        )
    return text


def _parse_chunk(env: Mapping[str, str]) -> int:
    text = env.get("HINDCAST_CHUNK") or "2000000"
    chunk = _parse_number(text)
    if not chunk:
        fix = "set it to the approximate number of offsets that a run commits at a time, such as 2000000"
        raise SettingsError(f"HINDCAST_CHUNK is '{_shorten(text)}', not a number of offsets", fix=fix)
    return chunk


def _parse_users(env: Mapping[str, str]) -> str:
    text = env.get("HINDCAST_USERS") or "admin:admin"
    users = text.split(",")
    if not (all(re.fullmatch(_USER_PATTERN, user) for user in users) and any(u.endswith(":admin") for u in users)):
        raise SettingsError(
            f"HINDCAST_USERS is '{text}', not a list of names with roles that has an admin",
            fix="write NAME:ROLE, separated by commas, such as ann:admin,bob:viewer; roles: admin, op, user, viewer",
        )
    return text


def _parse_umask(env: Mapping[str, str]) -> int:
    text = env.get("HINDCAST_UMASK") or "077"
    if not re.fullmatch(r"0?0[0-7]{2}", text):
        raise SettingsError(
            f"HINDCAST_UMASK is '{text}', not a umask that leaves its owner all rights",
            fix="write 077 (only we can read our files), 027 (our group can too) or 022 (everybody can)",
        )
    return int(text, 8)


def _parse_maintenance(env: Mapping[str, str]) -> str:
    text = env.get("HINDCAST_MAINTENANCE") or "@daily"
    if text != "never" and (refusal := cron.find_refusal(text)):
        found = f"HINDCAST_MAINTENANCE is '{_shorten(text)}', not a cron expression for Airflow: it {refusal.problem}"
        raise SettingsError(found, fix="write '0 3 * * *', or @daily, @weekly and so on; never: only by hand")
    return text


def _parse_days(env: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    text = env.get(name) or str(default)
    if (days := _parse_number(text)) is None or not least <= days < 100_000:
        fix = f"set it to a number from {least} to 99999"
        raise SettingsError(f"{name} is '{_shorten(text)}', not a number of days", fix=fix)
    return days


_USER_PATTERN = r"[A-Za-z0-9_.-]+:(admin|op|user|viewer)"


def _read_machine_mebibytes() -> int:
    """Return the memory of this machine, or of our control group if that is limited, in MiB."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):  # no control group, or no limit
        memory = min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return memory // 2**20
