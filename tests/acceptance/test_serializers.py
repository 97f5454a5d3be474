"""The user's own serializers, and those that a worker must be told to trust."""

import shutil
from pathlib import Path

import pytest

from tests.harness.rig import Rig

SHOUTING = """
class Shouting:
    name = "shouting"
    media_type = "application/x-shouting"
    safe = True

    def dumps(self, value):
        return "\\n".join(str(item).upper() for item in value).encode()

    def loads(self, data, classes):
        return data.decode().split("\\n")
"""

#: Jobs whose module registers the serializer that they are written with.
LOUD = """
import palermo
import shop
from palermo import serializers

serializers.register(Shouting())


@palermo.job(serializer="shouting")
def shout(text):
    shop.write("notes", text)
"""


@pytest.fixture
def rig(sqlite_rig: Rig) -> Rig:
    return sqlite_rig


def install(site: Path) -> Path:
    """Put the serializer on the path as an installed distribution; returns the folder of its metadata."""
    (site / "shouting.py").write_text(SHOUTING)
    about = site / "shouting-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: shouting\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[palermo.serializers]\nshouting = shouting:Shouting\n")
    return about


def test_a_worker_reads_what_is_installed_and_fails_what_no_longer_is(rig: Rig) -> None:
    about = install(rig.path)
    for serializer in ("json", "msgpack", "shouting"):
        rig.python(f"import shop; shop.note.options(serializer='{serializer}').enqueue('by {serializer}')")

    rig.burst()

    assert rig.lines() == ["by json", "by msgpack", "BY SHOUTING"]

    rig.python("import shop; shop.note.options(serializer='shouting').enqueue('late')")
    shutil.rmtree(about)
    rig.burst()
    (error,) = rig.errors().values()
    assert error.class_name == "palermo.errors.MediaTypeUnknown"
    assert "application/x-shouting" in error.message


@pytest.mark.parametrize(
    ("program", "option", "module", "said"),
    [
        ("import shop; shop.note.options(serializer='pickle').enqueue('HELLO')", "--accept", "shop", "pickle"),
        ("import loud; loud.shout.enqueue('hello')", "--accept-only", "loud", "shouting"),
    ],
    ids=["pickle", "one that the module registers"],
)
def test_an_unsafe_serializer_is_read_only_if_the_worker_is_told_to(
    rig: Rig, program: str, option: str, module: str, said: str
) -> None:
    (rig.path / "loud.py").write_text(SHOUTING.replace("safe = True", "safe = False") + LOUD)
    rig.python(program)

    rig.burst(modules=(module,))
    (error,) = rig.errors().values()
    assert error.class_name == "palermo.errors.MediaTypeRefused"
    assert "--accept" in error.message

    rig.palermo("failed", "requeue", "--all", "--yes")
    rig.burst(option, said, modules=(module,))
    assert rig.lines() == ["HELLO"]
    assert rig.failed() == {}


def test_a_registered_serializer_stays_when_the_program_connects_again(rig: Rig) -> None:
    program = f"""
{SHOUTING}
import palermo
palermo.connect().serializers.register(Shouting())
palermo.connect()
palermo.enqueue("shop.note", ["twice"], serializer="shouting")
print(palermo.inspector().peek("jobs")[0]["args"])
"""

    assert rig.python(program) == "['TWICE']\n"
