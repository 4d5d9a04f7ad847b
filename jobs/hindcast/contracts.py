"""The former name of `hindcast.contract`, for programs that were written with it."""

import warnings

from hindcast.contract import find, load, load_all

__all__ = ["find", "load", "load_all"]

warnings.warn("hindcast.contracts is deprecated: import from hindcast.contract", DeprecationWarning, stacklevel=2)
