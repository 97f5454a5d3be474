"""The rule for the conditions of all filters: a text must not be blank."""

from typing import Any

from palermo.errors import OptionInvalid


def check_conditions(filter: Any) -> None:
    """Raise OptionInvalid if a text in this filter is blank.

    If a blank text meant no condition, an unset shell variable would select every job.
    """
    for name in filter.__struct_fields__:
        check_condition(name, getattr(filter, name))


def check_condition(name: str, value: Any) -> None:
    """Raise OptionInvalid if this condition is a blank text."""
    if isinstance(value, str) and not value.strip():
        raise OptionInvalid(f'"{name}" is blank. Give it a value, or leave it out.')
