"""Jobs of another module, in several shapes."""

from dataclasses import dataclass
from datetime import date

from shop import write

import palermo


@dataclass
class Loaf:
    grams: int
    baked: date


@palermo.job(queue="ovens")
def bake(loaf: Loaf):
    write("notes", f"{type(loaf).__name__} of {loaf.grams} g on {loaf.baked:%d.%m.}")


@palermo.job(name="bread.knead", queue="tables")
async def knead(minutes):
    write("notes", f"kneaded {minutes}")


@palermo.job(queue="tables", arguments="one")
def anything(value):
    write("notes", f"got {value!r}")
