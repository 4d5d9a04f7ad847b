"""Who may read what. Airflow's login and permissions are asked at every request; there are none of our own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Access:
    """What routes depend on (FastAPI's dependencies).

    `website`: whether the user may see Airflow's UI. `pipeline`: whether they may read the DAG that the address names
    as `dag_id`. Both refuse with 401 or 403. `readable` gives the names of all DAGs that they may read.
    """

    website: Callable[..., Any]
    pipeline: Callable[..., Any]
    readable: Callable[..., Any]


def airflow() -> Access:
    """The access that Airflow gives; only in its API server."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
    from airflow.api_fastapi.core_api.security import get_user, requires_access_dag, requires_access_view
    from fastapi import Depends

    def readable(user: Any = Depends(get_user)) -> frozenset[str]:  # noqa: B008  # how FastAPI is told
        return frozenset(get_auth_manager().get_authorized_dag_ids(user=user, method="GET"))

    return Access(requires_access_view(AccessView.WEBSITE), requires_access_dag("GET"), readable)
