"""The rules for the conditions of all filters: none may be blank, and a text to search for can't have a NUL."""

from typing import Any

from palermo.errors import OptionInvalid


def check_conditions(filter: Any) -> None:
    """Raise OptionInvalid if a condition in this filter is blank, or its text contains a NUL character.

    If a blank condition meant none, an unset shell variable would select every job. SQLite's LIKE ends at a NUL.
    """
    for name in filter.__struct_fields__:
        check_condition(name, getattr(filter, name))


def check_condition(name: str, value: Any) -> None:
    """Raise OptionInvalid if this condition is blank, or the text to search for and contains a NUL character."""
    if isinstance(value, str) and not value.strip():
        raise OptionInvalid(f'"{name}" is blank. Give it a value, or leave it out.')
    if name == "text" and value is not None and "\0" in value:
        raise OptionInvalid('"text" contains a NUL character, which no search finds. Remove it.')
