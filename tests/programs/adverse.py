"""Jobs for bad days that are of no one kind: batches, and results that nothing can write down."""

import os
import time

from shop import write

import palermo


@palermo.job(batch=10, batch_wait=0.1)
def store(numbers):
    write("calls", f"{os.getpid()} {len(numbers)}")
    time.sleep(0.03)
    for number in numbers:
        write("stored", number)


class Evil:
    """Whatever it is asked but for its class, it raises."""

    def __getattribute__(self, name):
        if name == "__class__":
            return Evil
        raise RuntimeError(f"asked for {name}")


class EvilDict(dict):
    def items(self):
        raise KeyError("no items")

    __iter__ = keys = items


class EvilText(str):
    def __str__(self):
        raise ValueError("no text")

    encode = __repr__ = __str__


def circle():
    made = []
    made.append(made)
    return made


def deep():
    made = []
    for _ in range(200_000):
        made = [made]
    return made


RESULTS = {
    "object": object,
    "evil": Evil,
    "dict": lambda: EvilDict(a=1),
    "text": lambda: EvilText("x"),
    "circle": circle,
    "deep": deep,
    "generator": lambda: (n for n in range(3)),
    "large": lambda: "x" * 100_000_000,
    "number": lambda: 10**5_000,
    "surrogate": lambda: "\ud800",
    "function": lambda: print,
    "class": lambda: Evil,
    "lock": lambda: __import__("threading").Lock(),
    "exception": lambda: ValueError("returned"),
}


@palermo.job(keep_result=True)
def give(kind):
    made = RESULTS[kind]()
    write("given", kind)
    return made
