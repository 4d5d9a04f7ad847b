"""What a check of `hindcast doctor` found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

State = Literal["ok", "warning", "failed"]


@dataclass(frozen=True)
class CheckResult:
    """One line of the report: what was checked, its state, what was found, and what to do unless it is ok."""

    what: str
    state: State
    found: str
    fix: str = ""

    def as_json(self) -> dict[str, str]:
        """Return the result as data; the key of the fix is `mend`."""
        return {"mend" if name == "fix" else name: value for name, value in asdict(self).items()}
