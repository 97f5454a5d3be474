"""A serializer of the user's own, which a worker must be told to trust."""

import shutil

from tests.harness.rig import Rig

SHOUTING = """
class Shouting:
    name = "shouting"
    media_type = "application/x-shouting"
    safe = False

    def dumps(self, value):
        return "\\n".join(str(item).upper() for item in value).encode()

    def loads(self, data, classes):
        return data.decode().split("\\n")
"""


def test_an_installed_unsafe_serializer_is_read_only_if_it_is_accepted(sqlite_rig: Rig) -> None:
    rig = sqlite_rig
    # As an installed distribution.
    (rig.path / "shouting.py").write_text(SHOUTING)
    about = rig.path / "shouting-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: shouting\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[palermo.serializers]\nshouting = shouting:Shouting\n")
    rig.python("import shop; shop.note.options(serializer='shouting').enqueue('hello')")

    rig.burst()
    (error,) = rig.errors().values()
    assert error.class_name == "palermo.errors.MediaTypeRefused"
    assert "--accept" in error.message

    rig.palermo("failed", "requeue", "--all", "--yes")
    rig.burst("--accept", "shouting")
    assert rig.lines() == ["HELLO"]

    rig.python("import shop; shop.note.options(serializer='shouting').enqueue('late')")
    shutil.rmtree(about)
    rig.burst()
    (error,) = rig.errors().values()
    assert error.class_name == "palermo.errors.MediaTypeUnknown"
    assert "application/x-shouting" in error.message


def test_a_serializer_that_a_module_registers_can_be_accepted(sqlite_rig: Rig) -> None:
    rig = sqlite_rig
    (rig.path / "loud.py").write_text(
        f"{SHOUTING}\nimport palermo, shop\nfrom palermo import serializers\nserializers.register(Shouting())\n\n"
        "@palermo.job(serializer='shouting')\ndef shout(text):\n    shop.write('notes', text)\n"
    )
    rig.python("import loud; loud.shout.enqueue('hello')")

    rig.burst("--accept-only", "shouting", modules=("loud",))

    assert rig.lines() == ["HELLO"]
