"""The former name of `hindcast.read`, for programs that were written with it."""

import warnings

from hindcast.read import read_settings as settings

__all__ = ["settings"]

warnings.warn("hindcast.settings is deprecated: import from hindcast.read", DeprecationWarning, stacklevel=2)
