"""The demo's jobs: a module as a user would write it. `palermo worker palermo.demo.jobs` runs them."""

import ast
import gc
import logging
import tokenize
import warnings
from collections.abc import Generator
from dataclasses import dataclass

import palermo

log = logging.getLogger("palermo.demo")


@dataclass(frozen=True, slots=True)
class Parsed:
    """The counts of one file."""

    nodes: int
    functions: int


@palermo.job(queue="demo", keep_result=True)
def parse(path: str, encoding: str | None = None) -> Parsed:
    """Parse one Python source file, and return how much is in it.

    `encoding` is for a file that is not UTF-8 and does not name its encoding.
    """
    with open(path, encoding=encoding) if encoding else tokenize.open(path) as file:
        source = file.read()
    with warnings.catch_warnings():
        # A warning about an invalid escape in a string of the file does not matter here.
        warnings.simplefilter("ignore")
        tree = ast.parse(source, path)
    nodes = functions = 0
    for node in ast.walk(tree):
        nodes += 1
        functions += isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    log.info("parsed path=%s nodes=%d functions=%d", path, nodes, functions)
    return Parsed(nodes, functions)


@parse.hook
def around_process(path: str, encoding: str | None = None) -> Generator[None, None, None]:
    """Parse without the garbage collector, which doubles the time: a syntax tree has no cycles to be found."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
