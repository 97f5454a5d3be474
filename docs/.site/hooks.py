"""Hooks of mkdocs (mkdocs.yml), which prepare the documents for the site.

The documents are written for readers of the repository. So some link to files outside docs/, which the site carries
too: a few as pages (MOVED), the others as they are, below files/. Hidden blocks, which set examples up, are left out.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"

#: Documents that are pages of the site under another name, most of them outside docs/.
MOVED = {
    "README.md": "index.md",
    "docs/README.md": "contents.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "internals/contributing.md",
    "examples/README.md": "learn/examples.md",
    "soak/README.md": "internals/soak.md",
    "SECURITY.md": "security-policy.md",
    "benchmarks/README.md": "internals/benchmarks.md",
}

_HIDDEN = re.compile(r"^<!-- (?:setup|check)\n.*?^-->\n|^ *<!-- (?:run|only shown) -->\n", re.MULTILINE | re.DOTALL)
_FENCED = re.compile(r"(^ *```.*?^ *```[ ]*$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()([^)\s:]+?)(#[^)\s]*)?(?=\))")


#: The looks of the site, and a script that names its landmarks.
_ASSETS = ("site.css", "site.js")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.extra_css.append("assets/site.css")
    config.extra_javascript.append("assets/site.js")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name in _ASSETS:
        files.append(File.generated(config, f"assets/{name}", abs_src_path=str(DOCS / ".site" / name)))
    for source, page in MOVED.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for name in sorted(linked_files() - set(MOVED)):
        files.append(File.generated(config, f"files/{name}", abs_src_path=str(ROOT / name)))
    return files


def linked_files() -> set[str]:
    """The files outside docs/ that the documents link to, below the repository's folder."""
    found = set()
    for source in {*(ROOT / name for name in MOVED), *DOCS.rglob("*.md")}:
        for part in _FENCED.split(_HIDDEN.sub("", source.read_text()))[::2]:
            targets = {_file_at((source.parent / path).resolve()) for path, _ in _LINK.findall(part)}
            found |= {target for target in targets if target.is_file() and DOCS not in target.parents}
    return {target.relative_to(ROOT).as_posix() for target in found}


def _file_at(target: Path) -> Path:
    """What a link to this place shows: of a folder its README, or else that of the folder above."""
    if not target.is_dir():
        return target
    return next(folder / "README.md" for folder in (target, *target.parents) if (folder / "README.md").exists())


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    source = next((name for name, uri in MOVED.items() if uri == page.file.src_uri), f"docs/{page.file.src_uri}")
    home = posixpath.dirname(page.file.src_uri)

    def on_the_site(link: re.Match[str]) -> str:
        path, anchor = link[1], link[2] or ""
        if path.startswith("#"):
            return link[0]
        name = _file_at(((ROOT / source).parent / path).resolve()).relative_to(ROOT).as_posix()
        uri = MOVED.get(name) or (name.removeprefix("docs/") if name.startswith("docs/") else f"files/{name}")
        return posixpath.relpath(uri, home or ".") + anchor

    parts = _FENCED.split(_HIDDEN.sub("", markdown))
    return "".join(part if number % 2 else _LINK.sub(on_the_site, part) for number, part in enumerate(parts))
