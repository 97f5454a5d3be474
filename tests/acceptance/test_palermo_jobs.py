"""Promises of the original Palermo about jobs on their way: P1, P2, P9, P10, P11, P20."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

import palermo
from palermo.errors import EncodeError, MediaTypeUnknown
from tests.harness.rig import Rig
from tests.helpers import eventually

#: A serializer of the user's own, as a distribution that is installed by putting it on the path.
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


def install(site: Path) -> None:
    (site / "shouting.py").write_text(SHOUTING)
    about = site / "shouting-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: shouting\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[palermo.serializers]\nshouting = shouting:Shouting\n")


def test_P1_a_worker_runs_what_was_enqueued_in_its_order(rig: Rig) -> None:
    worker = rig.worker()
    rig.ready(worker)

    for number in range(100):
        rig.enqueue("note", f"{number}")

    assert rig.await_lines(100) == [f"{number}" for number in range(100)]


def test_P1_jobs_that_waited_are_run_in_their_order(rig: Rig) -> None:
    calls = [("shop.note", (f"{number}",), {}) for number in range(500)]
    rig.client.enqueue_many(calls)

    rig.burst()

    assert rig.lines() == [f"{number}" for number in range(500)]
    assert rig.pending() == 0


def test_P2_a_job_enqueued_before_any_worker_ever_ran_is_run_by_the_first(rig: Rig) -> None:
    rig.palermo("enqueue", "shop.note", "--args", '["first"]', "-q", "never-seen")
    rig.palermo("enqueue", "shop.note", "--args", '["second"]', "-q", "never-seen")

    assert rig.pending("never-seen") == 2
    rig.burst("-q", "never-seen")
    assert rig.lines() == ["first", "second"]


def test_P9_headers_say_what_it_is_and_only_the_arguments_are_serialized(rabbitmq_rig: Rig) -> None:
    id = rabbitmq_rig.enqueue("shop.Send", "ann@example.org", queue="mail", subject="x" * 300)

    properties, body = rabbitmq_rig.get("mail")

    headers = properties.headers
    assert (properties.content_type, properties.delivery_mode, properties.message_id) == ("application/json", 2, id)
    assert (headers["id"], headers["job-class"], headers["queue"]) == (id, "shop.Send", "mail")
    assert headers["preview"].startswith("'ann@example.org'")
    assert len(headers["preview"]) == 100
    assert headers["preview"].endswith("...")
    assert isinstance(headers["created-at"], int)
    assert json.loads(body) == {"args": ["ann@example.org"], "kwargs": {"subject": "x" * 300}}


@pytest.mark.parametrize(("args", "kwargs"), [([1, "two"], {}), ([], {"to": "ann"}), ([], {})])
def test_P9_arguments_of_one_kind_are_plain_json(
    rabbitmq_rig: Rig, args: list[object], kwargs: dict[str, object]
) -> None:
    rabbitmq_rig.client.enqueue("shop.anything", args, kwargs, queue="mail")

    _, body = rabbitmq_rig.get("mail")

    assert (json.loads(body) if body else []) == (kwargs or args)


def test_P10_a_serializer_is_plugged_in_and_out_while_the_program_runs(rig: Rig) -> None:
    space: dict[str, type] = {}
    exec(SHOUTING, space)
    serializers = rig.client.serializers

    with pytest.raises(MediaTypeUnknown, match="shouting"):
        rig.client.enqueue("shop.note", ["a"], serializer="shouting")
    serializers.register(space["Shouting"]())
    rig.client.enqueue("shop.note", ["a"], serializer="shouting")
    assert rig.inspector.peek("jobs")[0]["args"] == ["A"]
    serializers.unregister("application/x-shouting")
    with pytest.raises(MediaTypeUnknown, match="shouting"):
        rig.client.enqueue("shop.note", ["b"], serializer="shouting")

    # After one look RabbitMQ may count a job less for an instant.
    (row,) = eventually(lambda: rig.inspector.peek("jobs"))
    assert (row["content_type"], row["args"], row["preview"]) == ("application/x-shouting", None, "'a'")


#: Jobs whose module registers the serializer that they are written with.
LOUD = """
import palermo
from palermo import serializers

serializers.register(Shouting())


@palermo.job(serializer="shouting")
def shout(text):
    with open("notes", "a") as notes:
        notes.write(text + "\\n")
"""


def test_P10_a_serializer_that_was_registered_stays_when_the_program_connects_again(rig: Rig) -> None:
    program = f"""
{SHOUTING}
import palermo
palermo.connect().serializers.register(Shouting())
palermo.connect()
palermo.enqueue("shop.note", ["twice"], serializer="shouting")
print(palermo.inspector().peek("jobs")[0]["args"])
"""

    assert rig.python(program) == "['TWICE']\n"


@pytest.mark.parametrize("option", ["--accept", "--accept-only"])
def test_P10_a_worker_accepts_a_serializer_that_its_module_registers(rig: Rig, option: str) -> None:
    (rig.path / "loud.py").write_text(SHOUTING.replace("safe = True", "safe = False") + LOUD)
    rig.python("import loud; loud.shout.enqueue('hello')")

    rig.burst(modules=("loud",))
    (error,) = map(str, rig.errors().values())
    assert error.startswith("palermo.errors.MediaTypeRefused: ")

    rig.palermo("failed", "requeue", "--all", "--yes")
    rig.burst(option, "shouting", modules=("loud",))
    assert rig.lines() == ["HELLO"]
    assert rig.failed() == {}


def test_P10_a_worker_takes_messages_of_every_serializer_that_is_installed(rig: Rig) -> None:
    install(rig.path)
    for serializer in ("json", "msgpack", "shouting"):
        rig.python(
            f"import palermo, shop; shop.note.options(serializer={serializer!r}).enqueue('by ' + {serializer!r})"
        )

    rig.burst()

    assert rig.lines() == ["by json", "by msgpack", "BY SHOUTING"]


def test_P10_a_type_that_nobody_can_read_any_more_fails_and_says_so(rig: Rig) -> None:
    install(rig.path)
    rig.python("import palermo, shop; shop.note.options(serializer='shouting').enqueue('lost?')")
    shutil.rmtree(rig.path / "shouting-1.0.dist-info")

    rig.burst()

    (error,) = map(str, rig.errors().values())
    assert error.startswith("palermo.errors.MediaTypeUnknown: ")
    assert "application/x-shouting" in error
    install_again = rig.path / "again"
    install_again.mkdir()
    install(install_again)
    (install_again / "shouting-1.0.dist-info").rename(rig.path / "shouting-1.0.dist-info")
    rig.palermo("failed", "requeue", "--all", "--yes")
    rig.burst()
    assert rig.lines() == ["LOST?"]


def test_P10_pickle_runs_only_where_the_worker_was_told_to_trust_it(rig: Rig) -> None:
    rig.python("import palermo, shop; shop.note.options(serializer='pickle').enqueue('pickled')")

    rig.burst()
    (error,) = map(str, rig.errors().values())
    assert error.startswith("palermo.errors.MediaTypeRefused: ")
    assert "--accept pickle" in error

    rig.palermo("failed", "requeue", "--all", "--yes")
    rig.burst("--accept", "pickle")
    assert rig.lines() == ["pickled"]
    assert rig.failed() == {}


def test_P11_one_worker_runs_the_jobs_of_all_modules_that_it_imports(rig: Rig) -> None:
    rig.enqueue("shop.note", "a function")
    rig.enqueue("shop.Note", "a class", kwargs={"prefix": "also "})
    rig.python("import datetime, bakery; bakery.bake.enqueue(bakery.Loaf(750, datetime.date(2026, 5, 1)))")
    rig.enqueue("bread.knead", 20, queue="tables")
    rig.client.enqueue("bakery.anything", [{"a": 1}], queue="tables")

    rig.burst(modules=("shop", "bakery"))

    assert sorted(rig.lines()) == [
        "Loaf of 750 g on 01.05.",
        "a function",
        "also a class",
        "got [{'a': 1}]",
        "kneaded 20",
    ]
    assert rig.failed() == {}


#: A package with jobs in modules that it does not import, a script beside them, and the settings of its project.
PROJECT = {
    "mill/__init__.py": "",
    "mill/grind.py": "import palermo, shop\n\n\n@palermo.job\ndef wheat(text):\n    shop.write('notes', text)\n",
    "mill/deep/__init__.py": "",
    "mill/deep/sift.py": "import palermo, shop\n\n\n@palermo.job\ndef flour(text):\n    shop.write('notes', text)\n",
    "mill/script.py": "import shop\nshop.write('notes', 'the script has run')\n\n\ndef run(text): ...\n",
    "palermo.toml": "imports = ['mill.*']\n",
}


def unpack(project: Mapping[str, str], site: Path) -> None:
    for name, text in project.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)


@pytest.mark.parametrize("modules", [("mill.grind", "mill.d*"), ()], ids=["by pattern", "by the settings"])
def test_P11_a_worker_imports_modules_by_pattern_and_without_any_those_of_the_settings(
    rig: Rig, modules: tuple[str, ...]
) -> None:
    unpack(PROJECT, rig.path)
    (rig.path / "mill/script.py").unlink()
    rig.client.enqueue("mill.grind.wheat", ["ground"])
    rig.client.enqueue("mill.deep.sift.flour", ["sifted"])

    rig.burst(modules=modules)

    assert rig.lines() == ["ground", "sifted"]


def test_P11_the_modules_of_the_settings_are_found_from_below_the_project(rig: Rig, tmp_path: Path) -> None:
    unpack(PROJECT, rig.path / "project")
    (rig.path / "project/mill/script.py").unlink()
    rig.client.enqueue("mill.grind.wheat", [f"{tmp_path}/notes"])
    source = "import palermo\n\n\n@palermo.job\ndef wheat(path):\n    open(path, 'a').write('ground\\n')\n"
    (rig.path / "project/mill/grind.py").write_text(source)
    rig.path /= "project/mill/deep"

    rig.burst(modules=())
    done = rig.run("enqueue", "mill.grind.wheat", "--args", "[]")

    assert (tmp_path / "notes").read_text() == "ground\n"
    assert (done.returncode, "ArgumentsInvalid" in done.stderr) == (2, True)


@pytest.mark.parametrize("pool", ["process", "thread", "async"])
def test_P11_a_job_below_the_modules_given_is_found_and_nothing_beyond_them(rig: Rig, pool: str) -> None:
    unpack(PROJECT, rig.path)
    rig.client.enqueue("mill.deep.sift.flour", ["sifted"])
    for job in ("mill.script.run", "bakery.bake", "mill.__main__.run"):
        rig.client.enqueue(job, ["x"])

    rig.burst("-q", "jobs", "--pool", pool, modules=("mill",))

    assert rig.lines() == ["sifted"]
    assert sorted(row["job"] for row in rig.failed().values()) == [
        "bakery.bake",
        "mill.__main__.run",
        "mill.script.run",
    ]
    assert all(error.startswith("palermo.errors.JobNotFound: ") for error in map(str, rig.errors().values()))


def test_P11_a_worker_of_signed_jobs_imports_nothing_for_others(rig: Rig) -> None:
    unpack({name: text for name, text in PROJECT.items() if name != "palermo.toml"}, rig.path)
    rig.client.enqueue("mill.grind.wheat", ["unsigned"])
    keys = {"PALERMO_SIGNING_KEYS": "a key of 16 bytes"}

    rig.burst("-q", "jobs", "--accept-only", "signed", modules=("mill",), **keys)
    (error,) = map(str, rig.errors().values())
    assert error.startswith("palermo.errors.JobNotFound: ")

    rig.palermo("failed", "discard", "--all", "-y")
    done = rig.run("enqueue", "mill.grind.wheat", "--args", '["signed"]', "-q", "jobs", PALERMO_SIGN="1", **keys)
    assert done.returncode == 0, done.stderr
    rig.burst("-q", "jobs", "--accept-only", "signed", modules=("mill",), **keys)
    assert rig.lines() == ["signed"]


def test_P11_a_job_that_no_module_of_the_worker_declares_fails_and_says_how_to_start_it(rig: Rig) -> None:
    rig.enqueue("bread.knead", 1)

    rig.burst()

    (error,) = map(str, rig.errors().values())
    assert error.startswith("palermo.errors.JobNotFound: no job 'bread.knead' in this worker")


def test_P20_a_user_names_no_exchange_binding_prefetch_or_acknowledgement(rig: Rig) -> None:
    rig.environment.pop("PALERMO_EXCHANGE")
    rig.environment["PALERMO_EXCHANGE"] = rig.exchange  # the test's own corner of a broker that is shared
    program = """
import palermo, shop
shop.note.enqueue("run")
worker = palermo.start_worker(["shop"], burst=True)
assert worker.wait(150) == 0
print(palermo.inspector().queues())
"""

    shown = rig.python(program)

    assert rig.lines() == ["run"]
    assert {word for word in ("exchange", "binding", "prefetch", "routing") if word in shown} == set()


@pytest.mark.parametrize("command", ["worker", "enqueue", "queues", "jobs", "failed", "purge", "delete"])
def test_P20_no_command_asks_for_what_only_rabbitmq_knows(sqlite_rig: Rig, command: str) -> None:
    # A worker may be told to hold more than one job, and need not be.
    text = sqlite_rig.palermo(command, "--help").lower().replace("--prefetch n|auto", "")

    assert [word for word in ("binding", "prefetch", "routing", "delivery", " ack") if word in text] == []


def test_P20_mistakes_surface_where_the_job_is_enqueued(rig: Rig) -> None:
    program = """
import palermo, shop
for call in (lambda: shop.note.enqueue(), lambda: shop.note.enqueue(object()), lambda: shop.Send.enqueue("a", sub=1)):
    try:
        call()
    except palermo.PalermoError as error:
        print(type(error).__name__)
"""

    assert rig.python(program).split() == ["ArgumentsInvalid", "EncodeError", "ArgumentsInvalid"]
    assert issubclass(EncodeError, palermo.PalermoError)
    assert rig.pending() == 0


def test_R1_a_job_is_declared_enqueued_and_run_in_a_few_lines(rig: Rig) -> None:
    (rig.path / "clip.py").write_text(
        "import palermo\n\n\n"
        "@palermo.job\n"
        "class Archive:\n"
        "    def process(self, repo, branch='main'):\n"
        "        open('archived', 'a').write(f'{repo} {branch}\\n')\n"
    )

    rig.python("import clip; clip.Archive.enqueue('palermo', branch='next')")

    (row,) = rig.inspector.peek("jobs")
    assert (row["job"], row["args"], row["kwargs"]) == ("clip.Archive", ["palermo"], {"branch": "next"})
    rig.burst(modules=("clip",))
    assert rig.lines("archived") == ["palermo next"]


def test_R1_a_job_may_enqueue_another(rig: Rig) -> None:
    rig.open_gate()
    rig.enqueue("enqueue_and_hold", "first", "jobs", "second")

    worker = rig.worker()

    assert rig.await_lines(2) == ["first", "second"]
    eventually(lambda: rig.pending() == 0)
    assert worker.alive
