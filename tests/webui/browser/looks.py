"""Measures a page that is open in a browser: what is too wide, cut off, overlapping or too small, and what axe finds.

Nothing is compared with pictures: fonts differ from machine to machine, and these rules hold with all of them.
"""

from pathlib import Path
from typing import Any

from playwright.sync_api import Page

_AXE = (Path(__file__).parent / "axe.min.js").read_text()

#: Where a reader scrolls sideways on purpose: code, drawings, tabs, and on a phone the navigation.
_SCROLLS = "pre, .trace, .wiring, .tabs, .side nav"

_MISFITS = (Path(__file__).parent / "misfits.js").read_text()


def violations(page: Page, **options: Any) -> list[str]:
    """What axe finds wrong, with where."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(_AXE)
    # What axe finds right it would describe too, node by node, which takes longer than finding it.
    asked = {"resultTypes": ["violations"], **options}
    found: dict[str, Any] = page.evaluate("options => axe.run(document, options)", asked)
    return [f"{each['id']}: {node['html'][:160]}" for each in found["violations"] for node in each["nodes"]]


def misfits(page: Page, *, touch: bool = False) -> list[str]:
    """What is too wide, cut off or overlapping; for fingers (`touch`) also what is too small to hit."""
    found: list[str] = page.evaluate(_MISFITS, [_SCROLLS, touch])
    return found
