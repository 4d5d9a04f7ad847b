"""The former name of `hindcast.common.session`, for programs that were written with it."""

import warnings

from hindcast.common.session import open_session as session

__all__ = ["session"]

warnings.warn("hindcast.session is deprecated: import from hindcast.common.session", DeprecationWarning, stacklevel=2)
