"""The former name of `hindcast.query.spark_functions`, for programs that were written with it."""

import warnings

from hindcast.query.spark_functions import register

__all__ = ["register"]

warnings.warn(
    "hindcast.functions is deprecated: import from hindcast.query.spark_functions", DeprecationWarning, stacklevel=2
)
