"""The documentation as a site, as MkDocs calls us: the README is its first page, and links into the repository hold.

Pages link to each other, and to files of the repository, as they lie there. The README is made a page of docs/, and
what lies outside docs/ is put beside the site, under files/.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
FILES = "files"
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)#\s]+)")


def on_config(config: Any) -> Any:
    """Names the decisions in the navigation, in their order."""
    decisions = [f"adr/{path.name}" for path in sorted((ROOT / "docs/adr").glob("*.md"))]
    config.nav = [{name: decisions if pages == "adr" else pages for name, pages in part.items()} for part in config.nav]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds the README, and the files that pages link to outside docs/."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "index.md", content=readme))
    for page in [*files.documentation_pages()]:
        for target in _LINK.findall(page.content_string):
            path = _in_repository(page, target)
            name = f"{FILES}/{path}.txt"
            if not path.startswith("docs/") and (ROOT / path).is_file() and files.get_file_from_path(name) is None:
                files.append(File.generated(config, name, content=(ROOT / path).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:  # noqa: ARG001  # MkDocs names them
    """Links as they are in the site."""

    def there(found: re.Match[str]) -> str:
        path = _in_repository(page.file, found[1])
        if (ROOT / path).is_dir():
            path = min(str(it.relative_to(ROOT)) for it in (ROOT / path).glob("*.md"))
        site = path.removeprefix("docs/") if path.startswith("docs/") else f"{FILES}/{path}.txt"
        site = "index.md" if path == "README.md" else site
        return posixpath.relpath(site, posixpath.dirname(page.file.src_uri) or ".")

    return _LINK.sub(there, markdown)


def _in_repository(page: File, target: str) -> str:
    """What a link of a page points to, by its path in the repository."""
    folder = "." if page.src_uri == "index.md" else posixpath.dirname(f"docs/{page.src_uri}")
    return posixpath.normpath(posixpath.join(folder, target))
