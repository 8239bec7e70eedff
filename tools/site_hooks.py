# SPDX-License-Identifier: Apache-2.0
"""Adds the documents at the root of the tree to the site of mkdocs.yml, and adapts their links.

README.md becomes index.md, and all pages are in one folder. Links to files that are not pages
(sources, SECURITY.md) become text, because the site does not contain them.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "ARCHITECTURE.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
}
LINK = re.compile(r"(\[[^\]]*\]\()(?!https?://|#)([^)#\s]+)([^)\s]*\))")


def on_files(files: Files, config: Any) -> Files:
    """Adds each root document as a generated file."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Rewrites links between the root and docs/ to the flat layout of the site."""
    del page, config

    def rewrite(match: re.Match[str]) -> str:
        name = match[2].removeprefix("../").removeprefix("docs/")
        name = PAGES.get(name, name)
        if files.get_file_from_path(name) is None:
            return match[0].partition("](")[0].lstrip("[")
        return f"{match[1]}{name}{match[3]}"

    return LINK.sub(rewrite, markdown)
