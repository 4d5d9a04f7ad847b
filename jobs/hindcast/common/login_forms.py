"""The forms in which servers are sent a login, and in which one that echoes a request shows it: they are hidden."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Sequence
from urllib.parse import quote, quote_plus

HIDDEN = "***"


def hide_login(text: str, user: str, password: str) -> str:
    """Return what a server says without the password of a login, in any form (`list_login_forms`).

    Nor does it end in the beginning of one, if the text was cut.

    >>> hide_login("Basic YW5uOnMzY3JldC05, client_secret=s3cret-9, s3cre", "ann", "s3cret-9")
    'Basic ***, client_secret=***, ***'
    """
    forms = list_login_forms(user, password)
    if not forms:
        return text
    text = re.sub("|".join(map(re.escape, forms)), HIDDEN, text, flags=re.IGNORECASE)
    begun = (length for length in range(len(forms[0]), _SHORTEST, -1) if _ends_with_beginning(text, forms, length))
    length = next(begun, 0)
    return f"{text[:-length]}{HIDDEN}" if length else text


def list_login_forms(user: str, password: str) -> list[str]:
    """Return the password as it is, quoted for URLs, JSON and HTML, and the login in Base64; the longest first.

    Nothing without a password.
    """
    if not password:
        return []
    words = {password, quote(password), quote(password, safe=""), quote_plus(password)}
    words |= {html.escape(password), json.dumps(password)[1:-1], repr(password)[1:-1]}
    logins = {password, *(f"{code(user)}:{code(password)}" for code in (str, quote, quote_plus))}
    encoded = {encode(login.encode()).decode() for login in logins for encode in (_encode, base64.urlsafe_b64encode)}
    forms = {*words, *encoded, *(text.rstrip("=") for text in encoded)}
    forms |= {form.replace("/", "\\/") for form in forms}  # as some write it in JSON
    return sorted(forms, key=lambda form: (-len(form), form))


def _ends_with_beginning(text: str, forms: Sequence[str], length: int) -> bool:
    end = text[-length:].lower()
    return any(form[:length].lower() == end for form in forms)


_SHORTEST = 3
"""The beginning of a form that is not longer is shown: it is as likely to be something else."""
_encode = base64.b64encode
