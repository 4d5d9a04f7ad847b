"""Texts that people write into Airflow's forms, or programs send by its API."""


def mend_text(text: str) -> str:
    """Return a text with question marks for what UTF-8 does not have: JSON can have half a character, as its escape."""
    return text.encode("utf-8", "replace").decode()
