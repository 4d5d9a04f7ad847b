"""The contracts and journals of pipelines that other contracts read: as they are today, or as they were at a moment."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import datetime

from hindcast.common.errors import ContractError, HindcastError
from hindcast.common.settings import Settings
from hindcast.contract import Contract, Shape, list_shapes
from hindcast.contract.folder import ContractFinder
from hindcast.contract.sensitive import list_marks
from hindcast.plan import definitions, journal
from hindcast.plan.runs import Run


class Pipelines(ABC):
    """The contracts and journals of pipelines, each read once.

    `hide_unknown`: whether all columns of a table count as sensitive while it is not known which are.
    """

    hide_unknown: bool

    def __init__(self, settings: Settings) -> None:
        self.warehouse = settings.warehouse
        self._settings = settings
        self._contracts: dict[str, Contract | ContractError | None] = {}
        self._runs: dict[str, list[Run] | HindcastError] = {}
        self._shapes: dict[str, Mapping[str, Shape]] = {}

    def find_contract(self, pipeline: str) -> Contract | ContractError | None:
        """Return the contract of a pipeline; the error of a file that may be it; None if there is none."""
        if pipeline not in self._contracts:
            self._contracts[pipeline] = self._load_contract(pipeline)
        return self._contracts[pipeline]

    def read_runs(self, pipeline: str) -> list[Run]:
        """Return the runs of a pipeline, oldest first; raise HindcastError for a damaged journal."""
        if pipeline not in self._runs:
            try:
                self._runs[pipeline] = self._load_runs(pipeline)
            except HindcastError as error:
                self._runs[pipeline] = error
        found = self._runs[pipeline]
        if isinstance(found, HindcastError):
            raise found
        return found

    def list_shapes(self, contract: Contract) -> Mapping[str, Shape]:
        """Return the shapes of a pipeline's tables by its contract."""
        if contract.pipeline not in self._shapes:
            self._shapes[contract.pipeline] = list_shapes(contract)
        return self._shapes[contract.pipeline]

    def may_mark(self, pipeline: str) -> bool:
        """Return whether a pipeline marks anything by its contract, or by one that is stored.

        True of a damaged journal, and if a file that may be the contract does not load and the contract of the last run
        is not stored. False if nothing is known of the pipeline.
        """
        contract = self.find_contract(pipeline)
        if isinstance(contract, Contract) and any(list_marks(contract).values()):
            return True
        try:
            past = self.read_runs(pipeline)
        except HindcastError:
            return True
        if isinstance(contract, ContractError) and (
            not past or definitions.find_fields(past, past[-1].plan.contract) is None
        ):
            return True
        return any(definitions.has_marks(run.plan.definition) for run in past)

    @abstractmethod
    def _load_contract(self, pipeline: str) -> Contract | ContractError | None: ...

    def _load_runs(self, pipeline: str) -> list[Run]:
        return journal.read_runs(self.warehouse, pipeline)


class KnownPipelines(Pipelines):
    """Pipelines as they are today. What is not known of them is hidden."""

    hide_unknown = True

    def __init__(self, settings: Settings, find_other: ContractFinder) -> None:
        super().__init__(settings)
        self._find_other = find_other

    def _load_contract(self, pipeline: str) -> Contract | ContractError | None:
        return self._find_other(self._settings.schemas, pipeline)


class PastPipelines(Pipelines):
    """Pipelines as they were at a moment, by their journals. What is not known of them was not hidden."""

    hide_unknown = False

    def __init__(self, settings: Settings, moment: datetime) -> None:
        super().__init__(settings)
        self._moment = moment

    def _load_contract(self, pipeline: str) -> Contract | None:
        try:
            return definitions.find_last_contract(self.read_runs(pipeline))
        except HindcastError:  # a damaged journal
            return None

    def _load_runs(self, pipeline: str) -> list[Run]:
        return [run for run in super()._load_runs(pipeline) if run.known_at <= self._moment]
