"""A contract with the settings that its pipeline runs with: what the steps of a run take.

The settings are read once, where a command, a task, a job or a page begins, and passed on in here. What needs only the
meaning of a contract takes a `Contract`.
"""

from __future__ import annotations

from pydantic import Field

from hindcast.common.settings import Settings
from hindcast.contract.model import Contract


class BoundContract(Contract):
    """A contract and the settings that its pipeline runs with. They are no part of its fields, nor of its hash."""

    settings: Settings = Field(exclude=True, repr=False)

    @property
    def warehouse(self) -> str:
        """The warehouse of the settings."""
        return self.settings.warehouse


def bind_contract(contract: Contract, settings: Settings) -> BoundContract:
    """Return a contract bound to settings."""
    fields = {**dict(contract), "settings": settings}
    bound = BoundContract.model_construct(contract.model_fields_set | {"settings"}, **fields)
    return bound.with_marks(contract.marks_of_others)
