"""Optional parts of the package, and what to say where one is not installed."""

from __future__ import annotations

from importlib.util import find_spec

from hindcast.common.errors import PlatformError


def require_extra(extra: str, *modules: str) -> None:
    """Raise PlatformError if one of these modules, which come with the extra, is not installed."""
    if missing := [name for name in modules if find_spec(name) is None]:
        raise PlatformError(
            f"this needs {' and '.join(missing)}, which the extra `{extra}` installs",
            fix=f"pip install 'hindcast[{extra}]'; in a checkout of Hindcast: make setup",
        )
