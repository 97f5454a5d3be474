"""The site of the documents has every page. `make docs` builds it and checks its links."""

from collections.abc import Iterator
from typing import Any

import yaml

from tests.doc_pages import ROOT

#: Documents outside docs/ that the site has as pages: docs/.site/hooks.py puts them there.
_OUTSIDE = {"start.md", "changelog.md", "internals/contributing.md", "learn/examples.md"}


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml without making the Python objects that it names."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)


def pages_of(entries: list[Any]) -> Iterator[str]:
    """The pages of a navigation, at every depth."""
    for entry in entries:
        for below in entry.values():
            yield from pages_of(below) if isinstance(below, list) else [below]


def test_the_navigation_of_the_site_has_every_page_once() -> None:
    navigation = yaml.load((ROOT / "mkdocs.yml").read_text(), _Loader)["nav"]
    listed = list(pages_of(navigation))
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}

    assert [next(iter(part)) for part in navigation] == ["Home", "Learn", "Guides", "Reference", "Internals"]
    assert sorted(listed) == sorted(pages | _OUTSIDE)
