"""The pages of reference that are made from the code are up to date."""

from collections.abc import Callable
from pathlib import Path

import pytest

import palermo
from tests.reference_pages import PAGES


@pytest.mark.parametrize(("path", "page"), PAGES.items(), ids=lambda each: getattr(each, "name", ""))
def test_a_page_that_is_made_from_the_code_is_up_to_date(path: Path, page: Callable[[], str]) -> None:
    assert path.read_text() == page(), f"{path.name} is not what the code says: run `make reference`."


def test_the_page_of_the_api_has_every_public_name() -> None:
    text = next(path for path in PAGES if path.name == "api.md").read_text()

    missing = {name for name in palermo.__all__ if f"\n### palermo.{name}\n" not in text}

    assert missing == {"PalermoError", "Settings"}
