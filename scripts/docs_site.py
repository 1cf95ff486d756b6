"""Hooks of mkdocs: a link that leaves docs/ leads to a copy of its file in the site.

mkdocs calls these functions by name: https://www.mkdocs.org/user-guide/configuration/#hooks (read 2026-11-22).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[1]
LEAVES = re.compile(r"\]\((?:\.\./)+([^)#\s]+)(?:#[^)\s]*)?\)")


def copied(path: str) -> str:
    """Return where the site has a file of the repository. Markdown becomes text, because it is not a page."""
    return f"repository/{path}.txt" if path.endswith(".md") else f"repository/{path}"


def leaving(text: str, depth: int) -> set[str]:
    """Return the files of the repository that a page links to, `depth` folders below docs/."""
    up = "../" * (depth + 1)
    return {found[1] for found in LEAVES.finditer(text) if found[0].startswith(f"]({up}")}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the files that pages link to outside of docs/; a missing one fails the build."""
    from mkdocs.structure.files import File

    for page in files.documentation_pages():
        for path in sorted(leaving(page.content_string, page.src_uri.count("/"))):
            if not files.get_file_from_path(copied(path)):
                files.append(File.generated(config, copied(path), content=(ROOT / path).read_bytes()))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Rewrite the links of a page that leave docs/."""
    depth = page.file.src_uri.count("/")
    inside = leaving(markdown, depth)

    def rewritten(found: re.Match[str]) -> str:
        return f"]({'../' * depth}{copied(found[1])})" if found[1] in inside else found[0]

    return LEAVES.sub(rewritten, markdown)
