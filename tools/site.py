"""Adds the files outside ``docs/`` that its pages link to, for the documentation site.

``mkdocs.yml`` names this file as a hook. On the repository's own pages such links lead to the file; the site has only
``docs/``, so each file that is linked becomes a page of its own, under ``files/``.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(([^)#\s:]+)(#[^)\s]*)?\)")
LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml", ".txt": "text"}


def outside(page: str, link: str) -> str | None:
    """Return the repository path that a page of ``docs/`` links to, if that is a file outside ``docs/``."""
    target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    return target if not target.startswith(("docs/", "..")) and (ROOT / target).is_file() else None


def place(target: str) -> str:
    """Return where the site has a file of the repository: a Markdown page as it is, anything else as a listing."""
    return f"files/{target}" if target.endswith(".md") else f"files/{target}.md"


def rewritten(page: str, text: str) -> str:
    """Return a page's Markdown with links out of ``docs/`` turned to the pages that the site has for them."""

    def turn(found: re.Match[str]) -> str:
        target = outside(page, found[1])
        if target is None:
            return found[0]
        return f"]({posixpath.relpath(place(target), posixpath.dirname(page) or '.')}{found[2] or ''})"

    return LINK.sub(turn, text)


def listing(target: str) -> str:
    """Return a file of the repository as Markdown; links of a Markdown file are taken as text."""
    text = (ROOT / target).read_text()
    if target.endswith(".md"):
        return LINK.sub("]", text).replace("[", "\\[")
    return f"# {posixpath.basename(target)}\n\n````{LANGUAGES.get(Path(target).suffix, 'text')}\n{text}\n````\n"


def on_files(files: Any, config: Any) -> Any:
    """Add the files that pages of ``docs/`` link to (a hook of MkDocs)."""
    from mkdocs.structure.files import File

    pages = [one.src_uri for one in files.documentation_pages()]
    texts = {page: (ROOT / "docs" / page).read_text() for page in pages}
    linked = {outside(page, found[1]) for page, text in texts.items() for found in LINK.finditer(text)}
    for target in sorted(filter(None, linked)):
        files.append(File.generated(config, place(target), content=listing(target)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links out of ``docs/`` to those pages (a hook of MkDocs)."""
    name = page.file.src_uri
    return markdown if name.startswith("files/") else rewritten(name, markdown)
