"""The values of environment variables that the settings are made of: each is parsed here, or refused."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from hindcast.common import cron
from hindcast.common.errors import SettingsError, suggest_nearest


def parse_path(env: Mapping[str, str], name: str, default: Path) -> Path:
    """Return a path, which becomes absolute."""
    return make_absolute(expand_home(env.get(name) or default, name), name)


def make_absolute(path: Path, setting: str) -> Path:
    """Return a path from the root; SettingsError, which names the setting, if it begins in a folder that is gone."""
    try:
        return path.absolute()
    except FileNotFoundError:
        fix = f"cd to another folder, or set {setting} to an absolute path"
        raise SettingsError("the current folder no longer exists", fix=fix) from None


def expand_home(path: str | Path, setting: str) -> Path:
    """Return a path with the home folder for its `~`; SettingsError, which names the setting, if nobody knows that."""
    try:
        return Path(path).expanduser()
    except RuntimeError:  # of a user that this machine does not have
        found = f"{setting} is '{_shorten(str(path))}', and this machine does not know that home folder"
        raise SettingsError(found, fix="write the whole path") from None


def parse_warehouse(warehouse: str, setting: str = "HINDCAST_WAREHOUSE, or HINDCAST_VAR,") -> str:
    """Return the warehouse as it is named everywhere; SettingsError for credentials or odd signs in it, or a scheme
    that Delta's readers or Spark do not know.

    `setting`: what the error says to set.
    """
    if _has_credentials(warehouse):  # first: other errors show the address, as every path does
        fix = "leave them out: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY have them (docs/deploy.md)"
        raise SettingsError("the warehouse has credentials in its address", fix=fix)
    scheme = warehouse.partition("://")[0] if "://" in warehouse else None
    place = warehouse
    if scheme is None:
        place = str(make_absolute(expand_home(warehouse, "HINDCAST_WAREHOUSE"), "HINDCAST_WAREHOUSE"))
    if re.search("[\ud800-\udfff]", place):
        fix = f"set {setting} to a folder whose whole path is UTF-8 text"
        raise SettingsError(f"the warehouse is '{_shorten(place)}', which is not UTF-8 text", fix=fix)
    if found := re.search(r"[#?%`\\]", place):  # Delta's readers take them for parts of a URL, or of SQL
        fix = f"set {setting} to a folder without it"
        shown = place[: found.end()] if found[0] in "?#" and "://" in place else place  # a query may have a secret
        raise SettingsError(f"the warehouse is '{_shorten(shown)}', and has {found[0]} in its path", fix=fix)
    if scheme is not None and scheme not in _SCHEMES:
        unknown = f"the warehouse begins with '{_shorten(scheme)}://', and Spark and delta-rs know no such scheme"
        raise SettingsError(unknown, fix=suggest_nearest(scheme, _SCHEMES))
    return place


_SCHEMES = ("s3a", "gs", "abfss", "abfs", "hdfs", "file")
"""Those that both Spark and delta-rs know; delta-rs takes a table of another for one that is not there."""


def _has_credentials(warehouse: str) -> bool:
    """Return whether a warehouse has a login or a secret in its address, also in one that lacks its slashes.

    A secret may have a slash. Azure's container@account is none.
    """
    decoded = warehouse.replace("%40", "@")
    if re.match(r"(?!file:)[^/]*://.*;[^/]*=", decoded, re.DOTALL):
        return True
    is_azure = re.fullmatch(r"(abfss?|wasbs?)://[\w$-]+@[\w.-]+(/.*)?", decoded, re.DOTALL)
    return not is_azure and bool(re.match(_LOGIN_IN_WAREHOUSE, decoded, re.DOTALL))


def parse_kafka(env: Mapping[str, str], default: str) -> str:
    """Return the addresses of the brokers; SettingsError if they have credentials."""
    text = env.get("HINDCAST_KAFKA") or default
    refuse_credentials(text, "HINDCAST_KAFKA")
    return text


def refuse_credentials(servers: str, where: str) -> None:
    """Raise SettingsError, which shows no address, if addresses of brokers have credentials or options."""
    if re.search(r"[@?;=&]|%40(?!\])", servers):  # [fe80::1%40] is an address of interface 40
        fix = (
            "write host:port, and give credentials as HINDCAST_KAFKA_USERNAME and HINDCAST_KAFKA_PASSWORD, or as login "
            "and password of the connection (docs/security.md)"
        )
        raise SettingsError(f"{where} has credentials or options in an address", fix=fix)


def parse_port(env: Mapping[str, str], name: str, default: int) -> int:
    """Return a port; SettingsError for anything else."""
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


def parse_registry(env: Mapping[str, str]) -> str:
    """Return the URL of the schema registry, empty without one; SettingsError if it is none, or has credentials.

    A query or a fragment is refused too: it may be a token, and the client would add its paths to it.
    """
    text = env.get("HINDCAST_SCHEMA_REGISTRY") or ""
    if text and not re.fullmatch(r"https?://(?:(?!%40)[^@?#;\s])+", text):
        raise SettingsError(
            "HINDCAST_SCHEMA_REGISTRY is not the URL of a schema registry without credentials",
            fix="write https://host:port; put user and password into HINDCAST_SCHEMA_REGISTRY_USER and "
            "HINDCAST_SCHEMA_REGISTRY_PASSWORD",
        )
    return text.rstrip("/")


def parse_spark(env: Mapping[str, str]) -> Literal["connect", "submit"]:
    """Return how Airflow runs Spark work; SettingsError for another word."""
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


def parse_switch(env: Mapping[str, str], name: str) -> bool:
    """Return whether a variable is `on`, as it is by default; SettingsError unless it is `on` or `off`."""
    text = env.get(name) or "on"
    if text not in ("on", "off"):
        raise SettingsError(f"{name} is '{text}'", fix=f"set {name} to 'on' or 'off'")
    return text == "on"


def parse_log(env: Mapping[str, str]) -> Literal["text", "json"]:
    """Return how steps are logged; SettingsError for another word."""
    match env.get("HINDCAST_LOG") or "text":
        case "text":
            return "text"
        case "json":
            return "json"
        case other:
            raise SettingsError(f"HINDCAST_LOG is '{other}'", fix="set HINDCAST_LOG to 'text' or 'json'")


def parse_memory(env: Mapping[str, str]) -> str:
    """Return the heap of a Spark driver as Java writes it; SettingsError for anything else."""
    text = env.get("HINDCAST_SPARK_MEMORY")
    if not text:
        return f"{min(max(_read_machine_mebibytes() // 3, 1024), 16384)}m"
    if not re.fullmatch(r"[1-9][0-9]{0,8}[gm]", text):
        raise SettingsError(
            f"HINDCAST_SPARK_MEMORY is '{_shorten(text)}', not an amount of memory",
            fix="write a number of gibibytes or mebibytes, such as 4g or 900m",
        )
    return text


def parse_chunk(env: Mapping[str, str]) -> int:
    """Return how many offsets a run commits at a time; SettingsError for anything else."""
    text = env.get("HINDCAST_CHUNK") or "2000000"
    chunk = _parse_number(text)
    if not chunk:
        fix = "set it to the approximate number of offsets that a run commits at a time, such as 2000000"
        raise SettingsError(f"HINDCAST_CHUNK is '{_shorten(text)}', not a number of offsets", fix=fix)
    return chunk


def parse_users(env: Mapping[str, str]) -> str:
    """Return the users of Airflow and their roles; SettingsError without an admin, or for another form."""
    text = env.get("HINDCAST_USERS") or "admin:admin"
    users = text.split(",")
    if not (all(re.fullmatch(_USER_PATTERN, user) for user in users) and any(u.endswith(":admin") for u in users)):
        raise SettingsError(
            "HINDCAST_USERS is not a list of names with roles that has an admin",  # people add passwords: not shown
            fix="write NAME:ROLE, separated by commas, such as ann:admin,bob:viewer; roles: admin, op, user, viewer",
        )
    return text


def parse_umask(env: Mapping[str, str]) -> int:
    """Return a umask; SettingsError for one that takes rights from its owner."""
    text = env.get("HINDCAST_UMASK") or "077"
    if not re.fullmatch(r"0?0[0-7]{2}", text):
        raise SettingsError(
            f"HINDCAST_UMASK is '{text}', not a umask that leaves its owner all rights",
            fix="write 077 (only we can read our files), 027 (our group can too) or 022 (everybody can)",
        )
    return int(text, 8)


def parse_maintenance(env: Mapping[str, str]) -> str:
    """Return when tables are maintained; SettingsError for what Airflow would refuse."""
    text = env.get("HINDCAST_MAINTENANCE") or "@daily"
    if text != "never" and (refusal := cron.find_refusal(text)):
        found = f"HINDCAST_MAINTENANCE is '{_shorten(text)}', not a cron expression for Airflow: it {refusal.problem}"
        raise SettingsError(found, fix="write '0 3 * * *', or @daily, @weekly and so on; never: only by hand")
    return text


def parse_days(env: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    """Return a number of days, `least` or more; SettingsError for anything else."""
    text = env.get(name) or str(default)
    if (days := _parse_number(text)) is None or not least <= days < 100_000:
        fix = f"set it to a number from {least} to 99999"
        raise SettingsError(f"{name} is '{_shorten(text)}', not a number of days", fix=fix)
    return days


_LOGIN_IN_WAREHOUSE = r"[^/]*://[^/]*(@|:(?!\d+(/|$)).*@)|(s3[an]?|gs|abfss?|wasbs?|hdfs|https?):/?(?!/).*@"
_USER_PATTERN = r"[A-Za-z0-9_.-]+:(admin|op|user|viewer)"


def _read_machine_mebibytes() -> int:
    """Return the memory of this machine, or of our control group if that is limited, in MiB."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):  # no control group, or no limit
        memory = min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return memory // 2**20
