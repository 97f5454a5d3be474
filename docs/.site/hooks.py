"""What the site does with the documents besides showing them, as hooks of mkdocs (mkdocs.yml).

The documents are written for readers of the repository. So some link to files outside docs/, which the site carries
too: a few as pages (OUTSIDE), the others as they are, below files/. Hidden blocks, which set examples up, are left out.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"

#: Documents outside docs/ that are pages of the site, and where.
OUTSIDE = {
    "README.md": "start.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "internals/contributing.md",
    "examples/README.md": "learn/examples.md",
}

_HIDDEN = re.compile(r"^<!-- (?:setup|check)\n.*?^-->\n|^ *<!-- (?:run|theirs) -->\n", re.MULTILINE | re.DOTALL)
_FENCED = re.compile(r"(^ *```.*?^ *```[ ]*$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()([^)\s:]+?)(#[^)\s]*)?(?=\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for source in sorted({ROOT / name for name in OUTSIDE} | set(DOCS.rglob("*.md"))):
        for part in _FENCED.split(_HIDDEN.sub("", source.read_text()))[::2]:
            for path, _ in _LINK.findall(part):
                target = (source.parent / path).resolve() if path else source
                name = target.relative_to(ROOT).as_posix()
                if target.is_file() and DOCS not in target.parents and name not in OUTSIDE:
                    if files.get_file_from_path(f"files/{name}") is None:
                        files.append(File.generated(config, f"files/{name}", abs_src_path=str(target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    source = next((name for name, uri in OUTSIDE.items() if uri == page.file.src_uri), f"docs/{page.file.src_uri}")
    home = posixpath.dirname(page.file.src_uri)

    def on_the_site(link: re.Match[str]) -> str:
        path, anchor = link[1], link[2] or ""
        if path.startswith("#"):
            return link[0]
        target = (ROOT / source).parent / path
        name = target.resolve().relative_to(ROOT).as_posix()
        name = f"{name}/README.md" if target.is_dir() else name
        uri = OUTSIDE.get(name) or (name.removeprefix("docs/") if name.startswith("docs/") else f"files/{name}")
        return posixpath.relpath(uri, home or ".") + anchor

    parts = _FENCED.split(_HIDDEN.sub("", markdown))
    return "".join(part if number % 2 else _LINK.sub(on_the_site, part) for number, part in enumerate(parts))
