"""The jobs of these tests. They are declared while these tests run, so that other tests of the process see none."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from palermo.jobs import hooks, registry

PROGRAMS = Path(__file__).parent / "programs"

# As a worker imports them.
sys.path.insert(0, str(PROGRAMS))

_before, _backends = set(registry.names()), hooks._backends
for module in ("stories", "tests.testing.jobs"):
    import_module(module)
_DECLARED = [registry.get(name) for name in registry.names() if name not in _before]
_TOLD = tuple(one for one in hooks._backends if one not in _backends)


def _forget() -> None:
    for definition in _DECLARED:
        registry.unregister(definition.name)
    hooks._backends = tuple(one for one in hooks._backends if one not in _TOLD)


_forget()


@pytest.fixture(autouse=True, scope="module")
def declared() -> Iterator[None]:
    """Declare the jobs for the tests of a module."""
    for definition in _DECLARED:
        registry.register(definition)
    hooks._backends += _TOLD
    yield
    _forget()


@pytest.fixture(scope="session", autouse=True)
def stories_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file to which the jobs of this process write."""
    path = tmp_path_factory.mktemp("stories") / "here"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PALERMO_TEST_STORIES", str(path))
        yield path


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    """Clear the list of what the jobs of earlier tests did."""
    from tests.testing.jobs import ran

    ran.clear()
