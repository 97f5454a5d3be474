"""The demo's jobs, in a module like a user's. Run with `palermo worker palermo.demo.jobs`."""

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
    """Parse one Python source file and return its counts.

    `encoding` is for files that aren't UTF-8 and don't declare their encoding.
    """
    with open(path, encoding=encoding) if encoding else tokenize.open(path) as file:
        source = file.read()
    with warnings.catch_warnings():
        # ignore warnings about invalid escapes in the parsed file
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
    """Parse without the garbage collector. It would double the time, and syntax trees contain no cycles."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
