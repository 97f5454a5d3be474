"""Coroutine tests, as in the contract."""

from tests.contract.conftest import pytest_pyfunc_call, runner

__all__ = ["pytest_pyfunc_call", "runner"]
