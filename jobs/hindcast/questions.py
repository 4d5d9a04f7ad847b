"""The former name of `hindcast.read`, for programs that were written with it."""

import warnings

from hindcast.read import Question

__all__ = ["Question"]

warnings.warn("hindcast.questions is deprecated: import from hindcast.read", DeprecationWarning, stacklevel=2)
