"""What workers import and trust, passwords that nobody is shown, and messages of programs that know no Palermo."""

import shutil

from tests.harness.processes import title
from tests.harness.rig import COMMAND, Rig
from tests.rabbitmq_node import Node, add_user, set_permissions, url_of

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

    worker = rig.launch([COMMAND, "worker", "--burst"], cwd=rig.path / "mill/deep")

    assert worker.wait() == 0, worker.log
    assert rig.lines("mill/deep/notes") == ["ground", "sifted"]


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


SECRET = "s3cr3t-p4ss"


def test_the_password_in_a_url_or_a_file_is_never_shown(rabbitmq_rig: Rig, shared_node: Node) -> None:
    rig, name = rabbitmq_rig, rabbitmq_rig.exchange
    add_user(shared_node, name, SECRET)
    set_permissions(shared_node, name, ".*", ".*", ".*")
    (rig.path / "password").write_text(f"{SECRET}\n")
    rig.environment["PALERMO_URL"] = "amqp://127.0.0.1:1/"
    parts = ["--host", shared_node.host, "--port", f"{shared_node.port}", "--user", name, "--password-file", "password"]
    whole = ["--url", url_of(shared_node, user=name, password=SECRET)]

    done = [rig.run("enqueue", "shop.hold", "--args", '["x"]', "-q", "jobs", *flags) for flags in (parts, whole)]
    workers = [rig.worker("-q", "jobs", *flags) for flags in (parts, whole)]
    rig.await_lines(2)
    titles = "".join(title(pid) for worker in workers for pid in worker.tree())
    done += [rig.run("workers", *flags) for flags in (parts, whole)]
    rig.open_gate()
    rig.await_lines(4)

    assert [each.returncode for each in done] == [0] * 4
    shown = [titles, *(worker.log for worker in workers), *(each.stdout + each.stderr for each in done)]
    assert not any(SECRET in text for text in shown)
    assert "palermo worker" in titles
    assert all(name in worker.log for worker in workers)


def test_a_default_job_takes_what_another_program_publishes(rabbitmq_rig: Rig) -> None:
    rig = rabbitmq_rig
    take = "def take(body: bytes): write('notes', f'{palermo.current_job().job}: {body!r}')\n"
    declared = f"import palermo\nfrom shop import write\n\n@palermo.job(queue='octets', default=True)\n{take}"
    (rig.path / "defaults.py").write_text(declared)
    rig.ready(rig.worker(modules=("defaults",)))

    rig.put("octets", b"\xff[")

    assert rig.await_lines(1) == ["defaults.take: b'\\xff['"]
    assert rig.failed() == {}
