"""The description of a contract or a table, which is Markdown, as plain text."""

from __future__ import annotations

import re

_LINK = re.compile(r"!?\[([^\]\n]*)\]\([^()\s]*\)")
_EMPHASIS = re.compile(r"(?<![\w*])(\*{1,3}|_{1,3}|`+)(?=\S)(.+?)(?<=\S)\1(?![\w*])")
_MARK = re.compile(r"^[ \t]*(?:#{1,6}|>|[-*+])[ \t]+", re.MULTILINE)
_SENTENCE = re.compile(r".+?[.!?](?=[\s]|$)")


def summarize_description(text: str) -> str:
    """Return the first sentence of a description, on one line; its first paragraph if no sentence ends there.

    >>> summarize_description("**bills** charges each order\\nby `price`. It is late.")
    'bills charges each order by price.'
    """
    paragraph = next(iter(split_paragraphs(text)), "")
    sentence = _SENTENCE.match(paragraph)
    return sentence[0] if sentence else paragraph


def split_paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a description, each on one line and without the marks of Markdown."""
    plain = _EMPHASIS.sub(r"\2", _LINK.sub(r"\1", _MARK.sub("", text)))
    return [" ".join(part.split()) for part in re.split(r"\n[ \t]*\n", plain) if part.strip()]
