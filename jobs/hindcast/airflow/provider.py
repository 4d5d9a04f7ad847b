"""What `airflow providers list` shows of Hindcast."""

from __future__ import annotations

from hindcast import __version__


def get_provider_info() -> dict[str, str | list[str]]:
    """Return the description of the package as a provider of Airflow."""
    return {
        "package-name": "hindcast",
        "name": "Hindcast",
        "description": "Kafka topics replayed into bitemporal Delta tables",
        "versions": [__version__],
        "extra-links": ["hindcast.airflow.links.ReportLink"],
    }
