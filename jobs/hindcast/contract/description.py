"""The description of a contract or a table, which is Markdown, as plain text.

Users write it, and pages show it of all pipelines. So each pattern takes time in proportion to the text: what it takes
between two marks ends at the first mark that could begin another match.
"""

from __future__ import annotations

import re

_SUMMARY = 1_000
"""The most characters of a description of which a summary is made."""

_LINK = re.compile(r"!?\[([^\[\]\n]*+)\]\([^()\s]*+\)")
_MARKED = {
    "`{1,3}": r"[^`\n]",
    r"\*(?!\*)": r"[^*\n]|\*\*+",
    r"\*\*(?!\*)": r"[^*\n]|\*(?!\*)",
    r"\*\*\*": r"[^*\n]",
    "_{1,3}": r"[^_\n]|(?<=[^\W_])_+(?=[^\W_])",
}
"""The marks of code and emphasis, each with a part of the text between two of them."""
_EMPHASIS = re.compile(
    "|".join(
        rf"(?<![\w*])({mark})(?=\S)((?:{part})++)(?<=\S)\{2 * n + 1}(?![\w*])"
        for n, (mark, part) in enumerate(_MARKED.items())
    )
)
_MARK = re.compile(r"^[ \t]*(?:#{1,6}|>|[-*+])[ \t]+", re.MULTILINE)
_SENTENCE = re.compile(r".+?[.!?](?=[\s]|$)")


def summarize_description(text: str) -> str:
    """Return the first sentence of a description, on one line; its first paragraph if no sentence ends there.

    >>> summarize_description("**bills** charges each order\\nby `price`. It is late.")
    'bills charges each order by price.'
    """
    paragraph = next(iter(split_paragraphs(text.lstrip()[:_SUMMARY])), "")
    sentence = _SENTENCE.match(paragraph)
    return sentence[0] if sentence else paragraph


def split_paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a description, each on one line and without the marks of Markdown."""
    plain = _EMPHASIS.sub(lambda match: match[match.lastindex or 0], _LINK.sub(r"\1", _MARK.sub("", text)))
    return [" ".join(part.split()) for part in re.split(r"\n[ \t]*\n", plain) if part.strip()]
