"""The rule for the conditions of all filters: a condition that is given says something."""

from typing import Any

from palermo.errors import OptionInvalid


def check_conditions(filter: Any) -> None:
    """Raise OptionInvalid if a text in this filter is blank.

    Taken for no condition, an unset variable of a shell would choose every job.
    """
    for name in filter.__struct_fields__:
        check_condition(name, getattr(filter, name))


def check_condition(name: str, value: Any) -> None:
    """Raise OptionInvalid if the value of this condition is a blank text."""
    if isinstance(value, str) and not value.strip():
        raise OptionInvalid(f"{name} is blank: give it a value, or leave it out.")
