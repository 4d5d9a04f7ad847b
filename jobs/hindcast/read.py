"""The public Python API: read tables as of a moment, as known at a moment.

    settings = read.read_settings()
    contract = read.find(settings.schemas, "restaurant")
    read.query(settings.warehouse, contract, "menu", read.Question(key=["curry"]))

`hindcast.query.read` documents what each function takes, returns and raises.
"""

from hindcast.bitemporal.predicates import Question
from hindcast.common.settings import read_settings
from hindcast.contract import find
from hindcast.query.read import frame, history, moment_of, query

__all__ = ["Question", "find", "frame", "history", "moment_of", "query", "read_settings"]
