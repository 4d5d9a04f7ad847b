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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hindcast.common import environment
from hindcast.common.errors import SettingsError
from hindcast.common.targets import FILE, Choice, read_target

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
                "without HINDCAST_WAREHOUSE the tables too; a command that you type works in a project's folder, "
                "which has schemas/ (hindcast init makes one)"
            )
            raise SettingsError("HINDCAST_VAR is not set", fix=fix)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that make another process read the same settings.

        With a target tables and reports are as the environment says without it, since another may replace it there.
        """
        given = ("HINDCAST_WAREHOUSE", "HINDCAST_REPORTS")
        own = {"HINDCAST_WAREHOUSE": self.warehouse, "HINDCAST_REPORTS": str(self.reports)}
        places = {name: os.environ.get(name, "") for name in given} if self.target else own
        return {
            "HINDCAST_ROOT": str(self.root),
            "HINDCAST_VAR": str(self.var),
            **places,
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
    root = environment.parse_path(env, "HINDCAST_ROOT", _CHECKOUT if is_checkout() else Path())
    var = environment.parse_path(env, "HINDCAST_VAR", root / "var")
    kafka_port = environment.parse_port(env, "HINDCAST_KAFKA_PORT", 19392)
    schemas, target = _parse_schemas(env, root), env.get(TARGET_VARIABLE) or ""
    warehouse, reports = _find_places(env, root, var, schemas, target)
    return Settings(
        root=root,
        var=var,
        warehouse=environment.parse_warehouse(warehouse),
        reports=reports,
        schemas=schemas,
        target=target,
        kafka=environment.parse_kafka(env, f"127.0.0.1:{kafka_port}"),
        schema_registry=environment.parse_registry(env),
        kafka_port=kafka_port,
        airflow_port=environment.parse_port(env, "HINDCAST_AIRFLOW_PORT", 18380),
        spark_port=environment.parse_port(env, "HINDCAST_SPARK_PORT", 15392),
        spark=environment.parse_spark(env),
        spark_memory=environment.parse_memory(env),
        chunk=environment.parse_chunk(env),
        kernels=environment.parse_switch(env, "HINDCAST_KERNELS"),
        pool=env.get("HINDCAST_POOL") or DEFAULT_POOL,
        users=environment.parse_users(env),
        umask=environment.parse_umask(env),
        maintenance=environment.parse_maintenance(env),
        time_travel=environment.parse_days(env, "HINDCAST_TIME_TRAVEL", 7, least=1),
        keep_reports=environment.parse_days(env, "HINDCAST_KEEP_REPORTS", 0, least=0),
        log=environment.parse_log(env),
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


def _find_places(env: Mapping[str, str], root: Path, var: Path, schemas: Path, target: str) -> tuple[str, Path]:
    """Return where tables and reports are: as the target says, else the environment.

    A target with a warehouse of its own has reports of its own: of pipelines of the same names.
    """
    warehouse = env.get("HINDCAST_WAREHOUSE") or str(var / "warehouse")
    reports = environment.parse_path(env, "HINDCAST_REPORTS", var / "reports")
    if not target:
        return warehouse, reports
    its = read_target(schemas, target)
    if its.reports is not None:
        reports = root / environment.expand_home(its.reports, f"reports in {FILE}")
    elif its.warehouse is not None:
        reports = reports / target
    if its.warehouse is not None:
        own = its.warehouse
        warehouse = own if "://" in own else str(root / environment.expand_home(own, f"warehouse in {FILE}"))
    return warehouse, reports


def _parse_schemas(env: Mapping[str, str], root: Path) -> Path:
    return environment.parse_path(env, SCHEMAS_VARIABLE, root / "schemas")
