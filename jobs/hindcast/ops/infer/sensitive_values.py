"""Columns that look like secrets or personal data: by their names, or by their values. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise

from hindcast.ops.infer.json_text import Number

_WORDS = {
    *("password", "passwd", "pwd", "passphrase", "passcode", "secret", "secrets", "token", "tokens", "jwt", "bearer"),
    *("credential", "credentials", "apikey", "auth", "authorization", "cookie", "session", "otp", "pin", "salt"),
    *("iban", "bic", "card", "cardnumber", "creditcard", "pan", "cvv", "cvc", "ssn", "passport", "taxid", "nif", "vat"),
    *("email", "emails", "mail", "phone", "phones", "telephone", "mobile", "fax", "msisdn", "birthday", "birthdate"),
    *("dob", "firstname", "lastname", "surname", "fullname", "address", "street", "salary", "ip", "imei", "username"),
}
_PAIRS = {
    *(("first", "name"), ("last", "name"), ("full", "name"), ("middle", "name"), ("maiden", "name"), ("given", "name")),
    *(("family", "name"), ("api", "key"), ("private", "key"), ("access", "key"), ("secret", "key"), ("license", "key")),
    *(
        ("user", "name"),
        ("account", "number"),
        ("bank", "account"),
        ("tax", "id"),
        ("date", "birth"),
        ("birth", "date"),
    ),
    *(("social", "security"), ("national", "id"), ("e", "mail"), ("drivers", "license"), ("sort", "code")),
}
_PARTS = ("password", "passwd", "secret", "token", "email", "iban", "phone", "creditcard", "apikey", "privatekey")
"""Words that are found also within another: userpassword."""

_SPLIT = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def looks_sensitive(name: str) -> bool:
    """Return whether a field's name is one of secrets or personal data.

    >>> [looks_sensitive(name) for name in ("userPassword", "first_name", "e-mail", "discard", "item", "cardinality")]
    [True, True, True, False, False, False]
    """
    words = [word.lower() for word in _SPLIT.findall(name)]
    pairs = pairwise(words)
    plain = "".join(words)
    return bool(_WORDS.intersection(words)) or any(p in _PAIRS for p in pairs) or any(part in plain for part in _PARTS)


_PATTERNS = {
    # The first eyJ of a word is enough, and atomic: trying each, as in eyJeyJeyJ..., would take quadratic time.
    "JSON Web Tokens": re.compile(r"(?<![A-Za-z0-9_-])(?>[A-Za-z0-9_-]*?eyJ)[A-Za-z0-9_-]{4,}+\.[A-Za-z0-9_-]{4,}+\."),
    "private keys": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    "access keys": re.compile(
        r"\b(?:AKIA[0-9A-Z]{16}|gh[pousr]_\w{20,}|xox[abprs]-[\w-]{10,}|[srp]k_(?:live|test)_\w{10,})"
    ),
    "password hashes": re.compile(r"\$(?:2[aby]|argon2\w*|6|5)\$"),
    "URLs with passwords": re.compile(r"://[^/\s:@]+:[^/\s:@]+@"),
    "bearer tokens": re.compile(r"\b[Bb]earer [A-Za-z0-9._~+/-]{8,}"),
    "e-mail addresses": re.compile(r"[^\s@<>\"',;]@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}"),
    "social security numbers": re.compile(r"(?<![\d-])\d{3}-\d{2}-\d{4}(?![\d-])"),
    "phone numbers": re.compile(r"(?<![\w+])\+\d[\d ()./-]{7,}\d"),
}
_HINT = re.compile(r"eyJ|-----|AKIA|gh[pousr]_|xox|k_|\$|://|earer|@|\+|\d-\d")
"""This is in every text that a pattern matches."""

_IBAN = re.compile(r"(?<![A-Z0-9])[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?(?![A-Z0-9])")
_CARD = re.compile(r"(?<![\d.-])[3-6]\d{3}(?:[ -]?\d){9,15}(?![\d.-])")
_FOUR_DIGITS = re.compile(r"\d{2} ?\d{2}")
"""This is in nearly every IBAN, and in every card number."""

_SEARCHED = 20_000
"""The most characters of a text that are searched: they take a hundredth of a second at most."""

CARDS = "card numbers"
"""A tenth of all numbers of so many digits pass for one: a column needs more of them."""

_LEAST_CARDS = 0.2


def choose_reason(counts: Mapping[str, int], total: int) -> str | None:
    """Return why a column is sensitive, given how many of its values look like what; None if it is not."""
    reasons = [label for label, n in counts.items() if label != CARDS or n >= _LEAST_CARDS * total]
    return " and ".join(reasons) if reasons else None


def find_sensitive_text(text: str) -> str | None:
    """Return what a text looks like that is a secret or personal, in words; None for any other text.

    Of a long text only the beginning is searched.
    """
    text = text[:_SEARCHED]
    if _HINT.search(text):
        for label, pattern in _PATTERNS.items():
            if pattern.search(text):
                return label
    if not _FOUR_DIGITS.search(text):
        return None
    if any(map(_is_iban, _IBAN.findall(text))):
        return "IBANs"
    if any(map(_has_check_digit, _CARD.findall(text))):
        return CARDS if _CARD.fullmatch(text) else f"{CARDS} within text"
    return None


def find_sensitive_number(number: Number) -> str | None:
    """Return what a number looks like that is a secret or personal, in words; None for any other."""
    return CARDS if len(number) > _SHORTEST_CARD and _CARD.fullmatch(number) and _has_check_digit(number) else None


def _is_iban(text: str) -> bool:
    plain = text.replace(" ", "")
    return int("".join(str(int(c, 36)) for c in plain[4:] + plain[:4])) % 97 == 1


def _has_check_digit(text: str) -> bool:
    """Return whether the last digit is the one that Luhn's algorithm gives."""
    digits = [int(c) for c in text if c.isdigit()][::-1]
    return sum(sum(divmod(2 * d, 10)) if n % 2 else d for n, d in enumerate(digits)) % 10 == 0


_SHORTEST_CARD = 12
