"""The masks in arguments that a form sends back: the hidden values are put in their places again."""

from collections.abc import Mapping
from typing import Any

from palermo.inspector.masking import MASK


def unmasked(edited: Any, original: Any) -> Any:
    """The edited value, with each mask that was left in it replaced by the original at the same key or index."""
    match edited, original:
        case str(), _ if edited == MASK:
            return original
        case Mapping(), Mapping():
            return {key: unmasked(value, original.get(key, value)) for key, value in edited.items()}
        case list(), list() | tuple():
            rest = [*original, *edited[len(original) :]]
            return [unmasked(value, before) for value, before in zip(edited, rest, strict=False)]
        case _:
            return edited
