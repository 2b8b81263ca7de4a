"""MkDocs' hooks: the documents at the top of the repository, and the manual pages, become pages.

Links are written for the files. Those to other documents lead to their pages; of those to source
files only the text stays.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any, Final

from docutils import nodes
from mkdocs.structure.files import File, Files

from package import pages

ROOT: Final = Path(__file__).parent.parent
TOP: Final = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
_LINK: Final = re.compile(r"\[([^\]]+)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any, **_: object) -> Files:
    for name, uri in TOP.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / name)))
    for name, document in pages.manual().items():
        files.append(File.generated(config, f"{name}.md", content=manual_page(name, document)))
    return files


def manual_page(name: str, document: nodes.document) -> str:
    """Return a manual page as Markdown: its title, and its body in HTML."""
    title, _, section = name.rpartition(".")
    return f"# {title}({section})\n\n<div>\n{pages.as_html(document)}\n</div>\n"


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    folder = "" if page.file.src_uri in TOP.values() else "docs"

    def on_site(link: re.Match[str]) -> str:
        text, target, anchor = link[1], link[2], link[3] or ""
        path = posixpath.normpath(posixpath.join(folder, target))
        if path in TOP:
            return f"[{text}]({TOP[path]}{anchor})"
        if path.startswith("docs/"):
            return f"[{text}]({path.removeprefix('docs/')}{anchor})"
        return text

    return _LINK.sub(on_site, markdown)
