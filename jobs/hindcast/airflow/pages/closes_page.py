"""Closes: what was reported of a period, and how it has been restated since, as a waterfall for each figure.

What is shown of a restatement is in report/restatement_page.py; templates/closes.html lays the page out.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from hindcast.airflow.pages import changes_page, known_ats
from hindcast.airflow.pages.time_machine import QuestionError
from hindcast.common.errors import QueryError, UnknownError
from hindcast.common.json_values import JsonObject, JsonValue
from hindcast.common.settings import Settings
from hindcast.contract import Contract
from hindcast.plan.closes import PREFIX
from hindcast.query import read, restatements
from hindcast.report import restatement_page


@dataclass(frozen=True)
class ClosesRequest:
    """The query of the address; None for what it leaves out. `knownAt` as in the time machine."""

    close: str | None = None
    knownAt: str | None = None  # noqa: N815  # as the address has it


def build_page(settings: Settings, contract: Contract, request: ClosesRequest) -> JsonObject:
    """Return the fields of a pipeline's page; QuestionError for a question that cannot be answered."""
    place = settings.warehouse, contract.pipeline
    offered = known_ats.list_closes(*place)
    name = (request.close or "").removeprefix(PREFIX) or (offered[0].name if offered else None)
    fields: dict[str, JsonValue] = {
        "pipeline": contract.pipeline,
        "asked": asdict(request) | {"close": name},
        "knownAts": [*known_ats.list_known_ats(*place, offered)],
        "closes": [restatement_page.describe_close(close) for close in offered],
    }
    if name is None:
        return fields
    field = "knownAt"
    try:
        known_at = read.moment_of(*place, request.knownAt) if request.knownAt else read.read_last_known_at(*place)
        field = "close"
        fix = f"hindcast restate {contract.pipeline} {name} has no limit"
        with changes_page.limit_comparison(contract.pipeline, contract.pipeline, fix) as open_engine:
            found = restatements.restate_close(settings.warehouse, contract, name, known_at, open_engine)
    except (QueryError, UnknownError) as error:
        raise QuestionError(error, fields, field, "closes.html") from None
    return fields | restatement_page.describe_restatement(settings, contract, found)
