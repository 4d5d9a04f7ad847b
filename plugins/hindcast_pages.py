"""Hindcast's pages in Airflow's UI: on the navigation bar, and as tabs of a DAG and of a run."""

from airflow.plugins_manager import AirflowPlugin

from hindcast.airflow import pages


class HindcastPages(AirflowPlugin):
    """The plugin that serves the pages under /hindcast, behind Airflow's login."""

    name = "hindcast_pages"
    fastapi_apps = [{"app": pages.app, "url_prefix": pages.PREFIX, "name": "Hindcast"}]  # noqa: RUF012  # as Airflow reads it
    external_views = pages.VIEWS
