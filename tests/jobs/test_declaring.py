"""`@palermo.job` on functions and classes: what it leaves as it was, what it adds, what it refuses."""

import functools
import importlib
import inspect
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import palermo
from palermo import jobs
from palermo.errors import IdInvalid, JobNameTaken, JobNotFound, OptionInvalid, QueueNameInvalid
from palermo.jobs.definition import define
from palermo.jobs.job_registry import Registry


@palermo.job
def resize(path: str, width: int = 640) -> str:
    """Make it smaller."""
    return f"{path} at {width}"


@palermo.job(queue="mail", name="mail.send")
class SendMail:
    """Send it."""

    def process(self, to: str, *, subject: str = "hi") -> str:
        return f"{subject}, {to}"


def test_a_decorated_function_or_class_is_used_as_before() -> None:
    sys.modules[__name__] = sys.modules.get(__name__) or importlib.import_module(__name__)

    assert resize("x.png", width=3) == "x.png at 3"
    assert (resize.__name__, resize.__doc__) == ("resize", "Make it smaller.")
    assert str(inspect.signature(resize)) == "(path: str, width: int = 640) -> str"
    assert pickle.loads(pickle.dumps(resize)) is resize
    assert jobs.registry.get("mail.send").target is SendMail
    assert SendMail().process("a@b.c") == "hi, a@b.c"


def test_a_job_has_the_name_of_its_module_and_a_queue_of_the_settings() -> None:
    registry = jobs.Registry()
    registry.register(resize.definition)

    assert resize.definition.name == f"{__name__}.resize"
    assert jobs.registry.get(f"{__name__}.resize") is resize.definition
    assert (resize.definition.queue, SendMail.definition.queue) == (None, "mail")  # type: ignore[attr-defined]
    assert (registry.queues(), registry.queues("slow")) == (("jobs",), ("slow",))


def test_process_may_be_a_static_or_class_method_and_a_static_method_a_job() -> None:
    def process(*args: Any) -> Any:
        return args[-1]

    for kind in (staticmethod, classmethod):
        made: Any = palermo.job(type(kind.__name__, (), {"process": kind(process)}))
        made.definition.bind(["x"], {})
        assert made.definition.target().process("x") == "x"

    class Mailer:
        @staticmethod
        @palermo.job(name="shop.mailer.static")
        def static(to: str) -> None: ...

    assert Mailer.static.definition is jobs.registry.get("shop.mailer.static")


def test_a_job_wrapped_by_another_decorator_keeps_its_parameters_and_place() -> None:
    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    @palermo.job
    @logged
    def greet(name: str) -> str:
        return f"hello {name}"

    assert list(greet.definition.signature.parameters) == ["name"]
    assert greet.definition.origin.file == __file__
    assert greet("you") == "hello you"


def test_a_class_is_no_job_until_it_is_decorated_itself() -> None:
    class Mail(palermo.JobClass):
        def process(self, to: str) -> None: ...

    class Reminder(SendMail):
        pass

    with pytest.raises(OptionInvalid, match=r"Mail' is not a job yet\. Decorate it"):
        Mail.enqueue("x")
    assert not hasattr(Reminder, "enqueue")
    with pytest.raises(AttributeError, match=r"'.*Reminder' is not a job, although its base class 'mail.send' is"):
        Reminder.enqueue("x")  # type: ignore[attr-defined]

    decorated: Any = palermo.job(Reminder)

    assert decorated.definition.target is Reminder
    assert SendMail.definition.target is SendMail  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"que": "mail"}, r"@palermo.job has no option 'que'. Did you mean 'queue'\?"),
        ({"time_limit": 30}, r"has no option 'time_limit'. Did you mean 'timeout'\?"),
        ({"rate_limit": "10/m"}, r"has no option 'rate_limit'. Did you mean 'rate'\?"),
        ({"autoretry_for": OSError}, r"has no option 'autoretry_for'. Did you mean 'retry_on'\?"),
        ({"countdown": 5}, r"has no option 'countdown'. Did you mean 'delay'\?"),
        ({"arguments": "both"}, "arguments='both' is invalid"),
        ({"serializer": 3}, "serializer=3 is not a string"),
        ({"timeout": 0}, "timeout=0 is not a duration; give seconds above 0"),
        ({"timeout": True}, "timeout=True is not a duration"),
        ({"expires": float("inf")}, "expires=inf is not a duration"),
        ({"retries": -1}, "retries=-1 is not a whole number from 0 to"),
        ({"retries": True}, "retries=True is not a whole number"),
        ({"backoff": "expo"}, "backoff='expo' is invalid; it must be"),
        ({"backoff": lambda: 3}, "cannot be called with two arguments, the attempt and the error: too many positional"),
        ({"retry_for": 0}, "retry_for=0 is not a duration"),
        (
            {"retry_on": "ValueError"},
            "retry_on='ValueError' is neither an exception class nor a tuple of exception classes",
        ),
        ({"discard_on": (KeyError, int)}, "discard_on=.* is neither an exception class"),
        ({"sign": "yes"}, "sign='yes' is neither True nor False"),
        ({"default": "yes"}, "neither True nor False"),
        ({"name": ""}, "job name ''"),
        ({"name": "x" * 256}, "256 bytes"),
        ({"name": "\ud800"}, "cannot be encoded as UTF-8"),
    ],
)
def test_an_option_that_means_nothing_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionInvalid, match=text):

        @palermo.job(**options)
        def job() -> None: ...


def test_what_is_done_when_a_job_fails_is_declared_with_it() -> None:
    for options in (
        *({"retries": 0}, {"retry_for": 60.0}, {"retry_on": ValueError}, {"backoff": [1, 5, 30]}),
        {"backoff": palermo.Exponential(base=2, factor=3, cap=60, jitter=0.5)},
        {"backoff": lambda attempt, error: 3},
    ):
        assert define(lambda: None, name="a", **options).policy.declared is True, options
    for options in (
        {"discard_on": [KeyError, OSError]},
        dict.fromkeys(("retry_on", "discard_on", "backoff", "retries")),
    ):
        assert define(lambda: None, name="a", **options).policy.declared is False, options


def test_queues_ids_and_arguments_of_the_job_that_no_option_takes() -> None:
    for queue in ("mail ", "failed", 7):
        for option in (palermo.job, resize.options):
            with pytest.raises(QueueNameInvalid):
                option(queue=queue)  # type: ignore[operator]
    for id in ("", 7):
        with pytest.raises(IdInvalid):
            resize.options(id=id)  # type: ignore[arg-type]
    with pytest.raises(OptionInvalid, match="Pass the job's arguments to enqueue"):
        resize.options(width=3)  # type: ignore[call-arg]


def _generator() -> Any:
    yield 1


class _NeedsArguments:
    def __init__(self, connection: object) -> None: ...

    def process(self) -> None: ...


class _Mailer:
    def send(self, to: str) -> None: ...

    @classmethod
    def made(cls, to: str) -> None: ...

    @staticmethod
    def static(to: str) -> None: ...


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (3, "3 cannot be a job"),
        (functools.partial(print, 1), "cannot be a job"),
        (resize, "cannot be a job"),
        (_Mailer.send, r"'_Mailer\.send' is a method, but a worker has no object to call it on"),
        (vars(_Mailer)["made"], r"'_Mailer\.made' is a method"),
        (
            vars(_Mailer)["static"],
            r"'_Mailer\.static' is a staticmethod, not a function\. Write @staticmethod above @palermo\.job",
        ),
        (_generator, "is a generator"),
        (lambda path: path, "a lambda has no name"),
        (type("Mail", (), {}), "has no method `process`"),
        (type("Mail", (), {"process": 3}), "is not a method"),
        (_NeedsArguments, r"cannot be created without arguments \(missing a required argument: 'connection'\)"),
        (type("Mail", (), {"process": lambda self: None, "enqueue": len}), "already has an attribute 'enqueue'"),
    ],
)
def test_what_cannot_be_a_job_is_refused(target: Any, text: str) -> None:
    names = jobs.registry.names()

    with pytest.raises(OptionInvalid, match=text):
        palermo.job(target)

    assert jobs.registry.names() == names


def test_a_name_declared_twice_is_refused_with_both_places() -> None:
    @palermo.job(name="taken")
    def first() -> None: ...

    with pytest.raises(
        JobNameTaken, match=r"'taken' is declared twice: .*first in .*test_declaring.py and .*second in"
    ):

        @palermo.job(name="taken")
        def second() -> None: ...

    assert jobs.registry.get("taken") is first.definition


TWICE = """
import palermo

@palermo.job
def work(old): ...


@palermo.job
{kind} work{body}
"""


@pytest.mark.parametrize(
    ("kind", "body"), [("def", "(new): ..."), ("class", ":\n    def process(self, new): ...")], ids=["def", "class"]
)
def test_a_job_that_was_copied_and_not_renamed_is_refused_with_both_places(
    kind: str, body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "copied_tasks.py"
    file.write_text(TWICE.format(kind=kind, body=body))
    monkeypatch.syspath_prepend(tmp_path)
    line = 8 if kind == "def" or sys.version_info >= (3, 13) else 10

    with pytest.raises(JobNameTaken) as raised:
        importlib.import_module("copied_tasks")

    assert f"work in line 4 of {file} and work in line {line} of {file}" in str(raised.value)


def test_a_reloaded_module_replaces_its_jobs_even_if_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "moved_tasks.py"
    source = (
        "import palermo\n{}@palermo.job\ndef work({}): ...\n@palermo.job\nclass Mail:\n    def process(self): ...\n"
    )
    file.write_text(source.format("", "old"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module = importlib.import_module("moved_tasks")

    for number in range(1, 4):
        file.write_text(source.format(number * "\n", f"new_{number}"))
        importlib.reload(module)

    del sys.modules["moved_tasks"]
    file.write_text(source.format("\n\n", "imported_again"))
    importlib.import_module("moved_tasks")

    assert str(jobs.registry.get("moved_tasks.work").signature) == "(imported_again)"


@pytest.mark.parametrize("notebook", [True, False])
def test_a_cell_script_or_branch_that_runs_again_replaces_its_job(notebook: bool) -> None:
    for number in range(3):
        file = f"/tmp/ipykernel/{number}.py" if notebook else "/srv/app.py"
        text = "\n" * number + f"import palermo\n@palermo.job(name='shop.again')\ndef work(run_{number}): ...\n"
        exec(compile(text, file, "exec"), {"__name__": "__main__"} | ({} if notebook else {"__file__": file}))
    assert str(jobs.registry.get("shop.again").signature) == "(run_2)"

    def make(fast: bool) -> Any:
        if fast:
            return palermo.job(name="branch.work")(lambda fast: None)
        return palermo.job(name="branch.work")(lambda slow: None)

    make(True)
    assert make(False).definition is jobs.registry.get("branch.work")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("shop.mail.send", "Start it with `palermo worker shop.mail`"),
        ("__main__.resize", "which a worker cannot import. Move it"),
        ("shop.make.<locals>.resize", "Declare it at the top"),
        ("shop.letters.send_leter", "keep its old name with @palermo.job(name='shop.letters.send_leter')"),
        ("shop.letters.send_leter", "Did you mean 'shop.letters.send_letter'?"),
    ],
)
def test_a_job_that_a_worker_does_not_know_is_told_with_what_to_do(name: str, advice: str) -> None:
    known = Registry()
    known.register(define(lambda to: None, name="shop.letters.send_letter"))

    with pytest.raises(JobNotFound) as raised:
        known.get(name)

    assert advice in str(raised.value)
    assert ("palermo worker" in str(raised.value)) == (name == "shop.mail.send")


def test_a_queue_has_one_default_job() -> None:
    declared = Registry()
    declared.register(define(lambda body: None, name="a", queue="events", default=True))
    declared.register(define(lambda body: None, name="b", default=True))
    assert declared.defaults("jobs") == {"events": "a", "jobs": "b"}

    declared.register(define(lambda: None, name="c", queue="events", default=True))
    with pytest.raises(OptionInvalid, match="both default and batch"):
        define(lambda bodies: None, name="a", default=True, batch=5)
    with pytest.raises(JobNameTaken, match="queue 'events' has two default jobs, 'a' and 'c'"):
        declared.defaults("jobs")
