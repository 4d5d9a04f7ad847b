"""The models of what a contract asks of Airflow: owner, tags, retries, pool, queue and timeout of its tasks.

They change no answer and are in no hash: a run that began with others continues.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from hindcast.contract.types import ContractModel, ContractValue, Duration, Name, format_value


def _parse_text(text: ContractValue) -> ContractValue:
    """Return a short text of one line unchanged; raise ValueError for another value."""
    if not isinstance(text, str) or not text.strip() or "\n" in text or len(text) > MAX_TEXT:
        raise ValueError(f"{format_value(text)} is not a text; write 1 to {MAX_TEXT} characters, on one line")
    return text


def _parse_retries(number: ContractValue) -> ContractValue:
    """Return a number of retries unchanged; raise ValueError for another value."""
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= _MOST_RETRIES:
        raise ValueError(f"{format_value(number)} is not a number of retries; write 0 to {_MOST_RETRIES}")
    return number


MAX_TEXT = 100
"""The longest text: as long as Airflow's column for tags; those for pools and queues are longer."""

_MOST_RETRIES = 100
_Text = Annotated[str, BeforeValidator(_parse_text)]
_Retries = Annotated[int, BeforeValidator(_parse_retries), WithJsonSchema({"type": "integer", "minimum": 0})]


class TaskOptions(ContractModel):
    """What Airflow does with tasks; what is left out is as Airflow's own or Hindcast's settings say."""

    owner: _Text | None = Field(None, description="Who is responsible: shown and filtered by in Airflow.")
    retries: _Retries | None = Field(None, description="How many times a failed task is tried again; 2 if left out.")
    pool: _Text | None = Field(
        None, description="The pool of the steps in Spark; HINDCAST_POOL if left out. Airflow has to have it."
    )
    queue: _Text | None = Field(None, description="The queue of the workers that take the tasks (Celery, Kubernetes).")
    timeout: Duration | None = Field(
        None, description="After how long a step in Spark is stopped and tried again; 12 hours if left out."
    )

    def override(self, other: TaskOptions) -> TaskOptions:
        """Return these options, replaced by those that the other ones have."""
        given = {name: value for name in TaskOptions.model_fields if (value := getattr(other, name)) is not None}
        return TaskOptions.model_construct(**{name: getattr(self, name) for name in TaskOptions.model_fields} | given)


class AirflowOptions(TaskOptions):
    """The options of all tasks of a pipeline, the tags of its DAGs, and what differs for single tables."""

    tags: tuple[_Text, ...] = Field((), max_length=20, description="Tags of the DAGs, beside `hindcast`.")
    tables: dict[Name, TaskOptions] = Field(
        default_factory=dict, description="By topic or view, the options of its task that differ."
    )

    def find_table_options(self, name: str) -> TaskOptions:
        """Return the options of the task of a topic or view."""
        return self.override(self.tables.get(name, TaskOptions()))
