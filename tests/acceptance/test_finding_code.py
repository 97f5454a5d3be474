"""How a worker finds the code of its jobs, and what it refuses to import."""

import pytest

from tests.harness.rig import COMMAND, Rig

SCRIPT = "mill/script.py"

#: A package with jobs in modules that it does not import, a script beside them, and the settings of its project.
PROJECT = {
    "mill/__init__.py": "",
    "mill/grind.py": "import palermo, shop\n\n\n@palermo.job\ndef wheat(text):\n    shop.write('notes', text)\n",
    "mill/deep/__init__.py": "",
    "mill/deep/sift.py": "import palermo, shop\n\n\n@palermo.job\ndef flour(text):\n    shop.write('notes', text)\n",
    SCRIPT: "import shop\nshop.write('notes', 'the script has run')\n\n\ndef run(text): ...\n",
    "palermo.toml": "imports = ['mill.*']\n",
}


@pytest.fixture
def rig(sqlite_rig: Rig) -> Rig:
    return sqlite_rig


def unpack(rig: Rig, *, without: str) -> None:
    for name, text in PROJECT.items():
        if name != without:
            (rig.path / name).parent.mkdir(parents=True, exist_ok=True)
            (rig.path / name).write_text(text)


def test_one_worker_runs_the_jobs_of_all_modules_that_it_imports(rig: Rig) -> None:
    rig.enqueue("shop.Note", "a class", kwargs={"prefix": "also "})
    rig.python("import datetime, bakery; bakery.bake.enqueue(bakery.Loaf(750, datetime.date(2026, 5, 1)))")
    rig.enqueue("bread.knead", 20, queue="tables")
    rig.client.enqueue("bakery.anything", [{"a": 1}], queue="tables")

    rig.burst(modules=("shop", "bakery"))

    assert sorted(rig.lines()) == ["Loaf of 750 g on 01.05.", "also a class", "got [{'a': 1}]", "kneaded 20"]
    assert rig.failed() == {}


@pytest.mark.parametrize(
    ("modules", "folder"),
    [(("mill.grind", "mill.d*"), "."), ((), "mill/deep")],
    ids=["by pattern", "by the settings, from below the project"],
)
def test_a_worker_imports_modules_by_pattern(rig: Rig, modules: tuple[str, ...], folder: str) -> None:
    unpack(rig, without=SCRIPT)
    rig.client.enqueue("mill.grind.wheat", ["ground"])
    rig.client.enqueue("mill.deep.sift.flour", ["sifted"])

    worker = rig.launch([COMMAND, "worker", *modules, "--burst"], cwd=rig.path / folder)

    assert worker.wait() == 0, worker.log
    assert rig.lines(f"{folder}/notes") == ["ground", "sifted"]


@pytest.mark.parametrize("pool", ["process", "thread", "async"])
def test_a_job_below_the_given_modules_is_found_and_no_other(rig: Rig, pool: str) -> None:
    unpack(rig, without="palermo.toml")
    beyond = ["bakery.bake", "mill.__main__.run", "mill.script.run"]
    for job in ("mill.deep.sift.flour", *beyond):
        rig.client.enqueue(job, ["sifted"])

    rig.burst("-q", "jobs", "--pool", pool, modules=("mill",))

    assert rig.lines() == ["sifted"]
    assert sorted(row["job"] for row in rig.failed().values()) == beyond
    assert {error.class_name for error in rig.errors().values()} == {"palermo.errors.JobNotFound"}


def test_a_worker_of_signed_jobs_imports_nothing_for_unsigned_ones(rig: Rig) -> None:
    unpack(rig, without="palermo.toml")
    keys = {"PALERMO_SIGNING_KEYS": "a key of 16 bytes"}
    unsigned = rig.client.enqueue("mill.grind.wheat", ["unsigned"]).id
    signed = rig.run("enqueue", "mill.grind.wheat", "--args", '["signed"]', "-q", "jobs", PALERMO_SIGN="1", **keys)
    assert signed.returncode == 0, signed.stderr

    rig.burst("-q", "jobs", "--accept-only", "signed", modules=("mill",), **keys)

    assert rig.lines() == ["signed"]
    assert {id: error.class_name for id, error in rig.errors().items()} == {unsigned: "palermo.errors.JobNotFound"}
