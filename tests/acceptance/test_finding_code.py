"""How a worker finds the code of its jobs, and what it refuses to import."""

from tests.harness.rig import COMMAND, Rig

_JOB = "import palermo, shop\n\n\n@palermo.job\ndef {name}(text):\n    shop.write('notes', text)\n"

#: A package with jobs in modules that it does not import, and a script beside them.
PROJECT = {
    "mill/__init__.py": "",
    "mill/grind.py": _JOB.format(name="wheat"),
    "mill/deep/__init__.py": "",
    "mill/deep/sift.py": _JOB.format(name="flour"),
    "mill/script.py": "import shop\nshop.write('notes', 'the script has run')\n\n\ndef run(text): ...\n",
}


def unpack(rig: Rig) -> None:
    for name, text in PROJECT.items():
        (rig.path / name).parent.mkdir(parents=True, exist_ok=True)
        (rig.path / name).write_text(text)


def test_a_worker_of_signed_jobs_imports_nothing_for_unsigned_ones(sqlite_rig: Rig) -> None:
    rig = sqlite_rig
    unpack(rig)
    keys = {"PALERMO_SIGNING_KEYS": "a key of 16 bytes"}
    unsigned = rig.client.enqueue("mill.grind.wheat", ["unsigned"]).id
    signed = rig.run("enqueue", "mill.grind.wheat", "--args", '["signed"]', "-q", "jobs", PALERMO_SIGN="1", **keys)
    assert signed.returncode == 0, signed.stderr

    rig.burst("-q", "jobs", "--accept-only", "signed", modules=("mill",), **keys)

    assert rig.lines() == ["signed"]
    assert {id: error.class_name for id, error in rig.errors().items()} == {unsigned: "palermo.errors.JobNotFound"}


def test_without_modules_a_worker_imports_those_of_its_settings(sqlite_rig: Rig) -> None:
    rig = sqlite_rig
    unpack(rig)
    (rig.path / "mill/script.py").unlink()
    (rig.path / "palermo.toml").write_text("imports = ['mill.*']\n")
    rig.client.enqueue("mill.grind.wheat", ["ground"])
    rig.client.enqueue("mill.deep.sift.flour", ["sifted"])

    # From below the project.
    worker = rig.launch([COMMAND, "worker", "--burst"], cwd=rig.path / "mill/deep")

    assert worker.wait() == 0, worker.log
    assert rig.lines("mill/deep/notes") == ["ground", "sifted"]
