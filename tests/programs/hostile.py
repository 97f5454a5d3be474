"""Jobs that messages of foreign programs name, however odd these are otherwise; two of mixed.py here fail."""

import os

import palermo


@palermo.job(name="hostile.note")
def note(*text):
    with open(os.environ["PALERMO_TEST_NOTES"], "a") as file:
        file.write(f"{text[0]}\n")


@palermo.job(name="mixed.hostile")
def raises(*text):
    raise ValueError("\ud800\0" * 500)


@palermo.job(name="mixed.monster")
def raises_at_length(*text):
    raise type("Long" * 75_000, (Exception,), {})("x" * 100_000)
