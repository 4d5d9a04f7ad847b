"""Who may read what: every request is checked by Airflow's login and permissions; Hindcast adds none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PageAccess:
    """The FastAPI dependencies of the routes.

    `website` checks that the user may see Airflow's UI, `pipeline` that they may read the DAG that the address names as
    `dag_id`; both refuse with 401 or 403. `readable` returns the ids of all DAGs that the user may read.
    """

    website: Callable[..., None]
    pipeline: Callable[..., None]
    readable: Callable[..., frozenset[str]]


def airflow_access() -> PageAccess:
    """Return the access that Airflow grants; works only in its API server."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
    from airflow.api_fastapi.core_api.security import get_user, requires_access_dag, requires_access_view
    from fastapi import Depends

    def readable(user: Any = Depends(get_user)) -> frozenset[str]:  # noqa: B008  # FastAPI's way; it reads the type
        return frozenset(get_auth_manager().get_authorized_dag_ids(user=user, method="GET"))

    return PageAccess(requires_access_view(AccessView.WEBSITE), requires_access_dag("GET"), readable)
