"""Which folder of contracts gave the DAGs that a DAG file has created so far, so that no other folder replaces them.

A DAG file may call `pipelines` and `maintenance` for several folders, whose DAGs are in one dictionary in the end. What
was created is kept in the file's own module, which Airflow makes anew each time that it parses the file.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Any

from hindcast.common.errors import SettingsError
from hindcast.contract import bounds
from hindcast.contract.names import MAINTENANCE, clean_dag_id

_VARIABLE = "__hindcast_created_dags__"
"""The name in a DAG file's module."""


@dataclass
class CreatedDags:
    """The DAGs that one DAG file has created: their folders; the errors of those that only report one and give way to a
    pipeline of another folder.

    `reserved`: the pipelines whose contracts do not load, each with its folder: no other folder gives them. `tables`:
    how many tables of each folder have tasks. `seconds`: the time of a processor that its folders have taken.
    `targets`: the target of each folder.
    """

    folders: dict[str, Path] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)
    maintained: dict[Path, str] = field(default_factory=dict)
    reserved: dict[str, Path] = field(default_factory=dict)
    tables: dict[Path, int] = field(default_factory=dict)
    seconds: float = 0.0
    targets: dict[Path, str] = field(default_factory=dict)

    @contextmanager
    def measure_time(self) -> Iterator[float]:
        """Count the time that the context takes; yield the share of the file's time that was left, from 0 to 1."""
        begun = time.thread_time()
        try:
            yield max(0.0, 1 - self.seconds / bounds.DAG_FILE_SECONDS)
        finally:
            self.seconds += time.thread_time() - begun

    def refuse_other_target(self, folder: Path, target: str) -> None:
        """Raise SettingsError for a second target of a folder: its DAGs would replace those of the first."""
        if (first := self.targets.setdefault(folder, target)) != target:
            found = f"{folder} has DAGs of target '{first}' already, and those of '{target}' would have the same ids"
            raise SettingsError(found, fix="choose one target for each Airflow")

    def list_taken(self, folder: Path) -> Mapping[str, Path]:
        """Return the ids of the DAGs that other folders gave, each with its folder."""
        return {dag_id: other for dag_id, other in self.folders.items() if other != folder}

    def replace(
        self, folder: Path, dags: Iterable[str], errors: Mapping[str, Exception], reserved: Iterable[str] = ()
    ) -> None:
        """Record all DAGs of a folder, also if others were recorded before; `errors`: of those that give way."""
        self.reserved = {name: other for name, other in self.reserved.items() if other != folder}
        self.reserved |= {name: folder for name in reserved if name not in self.reserved}
        former = [dag_id for dag_id, other in self.folders.items() if other == folder]
        for dag_id in former:
            del self.folders[dag_id]
            self.errors.pop(dag_id, None)
        self.add(folder, dags)
        self.errors |= errors

    def add(self, folder: Path, dags: Iterable[str]) -> None:
        """Record more DAGs of a folder."""
        for dag_id in dags:
            self.folders[dag_id] = folder
            self.errors.pop(dag_id, None)

    def name_maintenance_dag(self, folder: Path, name: str | None = None) -> str:
        """Return the id of the DAG that maintains a folder's pipelines: another one for each further folder.

        `name`: what comes after hindcast_maintenance__, instead.
        """
        if folder not in self.maintained:
            ids = _list_ids(folder.name) if name is None else islice(_list_ids(name), 1, None)
            self.maintained[folder] = next(it for it in ids if it not in self.maintained.values())
        return self.maintained[folder]


def find_created_dags(module: MutableMapping[str, Any]) -> CreatedDags:
    """Return what was created in a DAG file, given the variables of its module."""
    created: CreatedDags = module.setdefault(_VARIABLE, CreatedDags())
    return created


def _list_ids(name: str) -> Iterator[str]:
    name = clean_dag_id(name)
    yield MAINTENANCE
    yield f"{MAINTENANCE}__{name}"
    yield from (f"{MAINTENANCE}__{name}_{number}" for number in count(2))
