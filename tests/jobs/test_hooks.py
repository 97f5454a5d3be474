"""The functions that are hooks, the order in which they run, and their arguments."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import palermo
from palermo.core.failure import Failure
from palermo.errors import OptionInvalid
from palermo.jobs import hooks

called: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_called() -> None:
    called.clear()


def named(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    return function


def test_the_catalogue_has_every_hook_of_resque() -> None:
    jobs = "before_enqueue after_enqueue before_process around_process after_process on_success on_failure on_exhausted"
    workers = "before_first_fork before_fork after_fork queue_empty queue_size before_pause after_pause shutdown"

    assert [*hooks.JOB_HOOKS] == [*jobs.split(), "before_dequeue", "after_dequeue"]
    assert [*hooks.WORKER_HOOKS] == [*workers.split(), "worker_exit"]
    assert {row.process for row in hooks.HOOKS} == {"caller", "slot", "template"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("before_process", "before_process"),
        ("before_process_open_database", "before_process"),
        ("before_processing", None),
        ("on_failure_tell", "on_failure"),
        ("before_first_fork", "before_first_fork"),
        ("before_fork_x", "before_fork"),
        ("process", None),
    ],
)
def test_a_function_is_a_hook_by_its_name(name: str, kind: str | None) -> None:
    assert hooks.kind_of(name) == kind


def test_a_function_of_another_name_is_refused() -> None:
    with pytest.raises(OptionInvalid, match=r"'tidy_up' isn't a hook\. Its name must start with one of before_enqueue"):
        palermo.hook(named("tidy_up", lambda: None))
    with pytest.raises(OptionInvalid, match="'queue_empty' isn't a hook"):
        palermo.job(name="shop.work")(lambda: None).hook(named("queue_empty", lambda: None))

    for name in ("before_enqueue", "around_process", "after_fork"):

        async def function(definition: Any) -> None: ...

        with pytest.raises(OptionInvalid, match=f"'{name}' is a coroutine function and would not be awaited"):
            palermo.hook(named(name, function))


def test_hooks_run_global_ones_first_and_each_group_by_name() -> None:
    @palermo.job
    def work(path: str, width: int = 1) -> None: ...

    work.hook(named("on_failure", lambda error, path: called.append((error, path))))
    palermo.hook(named("on_failure", lambda job, error, path: called.append((job.name, error, path))))
    work.hook(named("before_process_b", lambda path, width=1: called.append(("b", path, width))))
    work.hook(named("before_process_a", lambda path, width=1: called.append(("a", path, width))))
    palermo.hook(named("before_process_z", lambda job, path, width=1: called.append(("z", job.name, path, width))))
    palermo.hook(named("before_process_y", lambda job, path, width=1: called.append(("y", job.name, path, width))))

    assert hooks.run_before_hooks("before_process", work.definition, ["x"], {"width": 3})

    name = work.definition.name
    assert called == [("y", name, "x", 3), ("z", name, "x", 3), ("a", "x", 3), ("b", "x", 3)]
    for call in hooks.hooks_for("on_failure", work.definition):
        call("an error", "x")
    assert called[4:] == [(name, "an error", "x"), ("an error", "x")]


class Base:
    def after_process_close(self, *args: Any) -> None:
        called.append(("close", self, args))


class Work(Base):
    before_process_count = 3  # data is no hook

    def process(self, path: str) -> None:
        called.append(("process", self, path))

    def before_enqueue(self, path: str) -> None:
        called.append(type(self))

    @staticmethod
    def after_process_b(path: str) -> None:
        called.append(("b", path))

    @classmethod
    def after_process_a(cls, path: str) -> None:
        called.append(("a", cls, path))


def test_hooks_of_a_class_run_on_the_runs_object_or_their_own() -> None:
    definition = palermo.job(Work).definition
    instance = definition.target()

    instance.process("x")
    for hook in hooks.hooks_for("after_process", definition, instance):
        hook("x")

    assert called == [("process", instance, "x"), ("a", Work, "x"), ("b", "x"), ("close", instance, ("x",))]
    assert hooks.run_before_hooks("before_enqueue", definition, ["x"], {})
    assert called[4:] == [Work]


def test_a_hook_says_no_by_false_itself_or_by_an_exception() -> None:
    @palermo.job
    def work() -> None: ...

    answers = [False, None, 0, "", True]
    work.hook(named("before_enqueue_a", lambda: answers.pop(0)))
    work.hook(named("before_enqueue_b", lambda: called.append("b")))
    asked = [hooks.run_before_hooks("before_enqueue", work.definition, [], {}) for _ in range(5)]
    assert (asked, called) == ([False, True, True, True, True], ["b"] * 4)

    errors = [palermo.DontEnqueue("not now"), palermo.DontProcess("not now"), ValueError("x")]

    @work.hook
    def before_process() -> None:
        raise errors.pop(0)

    for _ in range(2):
        assert not hooks.run_before_hooks("before_process", work.definition, [], {})
    with pytest.raises(ValueError, match="x"):
        hooks.run_before_hooks("before_process", work.definition, [], {})


def test_a_reloaded_module_has_its_hooks_once_even_if_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    source = "\n@palermo.hook\ndef after_fork(worker): return {!r}\n"
    file = tmp_path / "reloaded_hooks.py"
    file.write_text("import palermo\n" + source.format("old") + source.format("old too"))
    module = importlib.import_module("reloaded_hooks")
    assert [function(None) for function in hooks.registered.of("after_fork")] == ["old", "old too"]

    file.write_text("import palermo\n\n\n\n" + source.format("new") + source.format("new too"))
    importlib.reload(module)

    assert [function(None) for function in hooks.registered.of("after_fork")] == ["new", "new too"], "one of each"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("before_proces", "before_process"),
        ("on_failed_tell", "on_failure"),
        ("onFailure", "on_failure"),
        ("after_processing", "after_process"),
        ("before_queue", "before_enqueue"),
        ("around_perform_timed", "around_process"),
    ],
)
def test_a_misspelt_hook_method_is_refused_with_the_nearest_name(name: str, meant: str) -> None:
    cls = type("Mail", (), {"process": lambda self: None, name: lambda self, *args: None})

    with pytest.raises(OptionInvalid, match=f"method '{name}' of class 'Mail' isn't a hook.* Did you mean '{meant}'?"):
        palermo.job(cls)
    # A method that is not like a hook is the job's own affair.
    for own in ("on_error", "failure", "_on_fail", "before_noon", "after_hours", "enqueue_all"):
        palermo.job(name=own)(type("Mail", (), {"process": lambda self: None, own: lambda self: None}))


def report() -> hooks.FailureReport:
    failure = Failure(exception_class="ValueError", message="broken\nbadly", stack_trace="", failed_at=1)
    return hooks.FailureReport(id="1", job="shop.work", queue="jobs", preview="'x'", failure=failure, worker="pid:1@h")


def test_failure_back_ends_are_functions_and_each_is_registered_once(caplog: pytest.LogCaptureFixture) -> None:
    def tell(report: hooks.FailureReport) -> None:
        called.append(report.id)

    # Two of one name, as lambdas are, are two.
    palermo.failure_backend(lambda report: called.append("tracker"))
    palermo.failure_backend(lambda report: called.append("mail"))
    palermo.failure_backend(tell)
    palermo.failure_backend(tell)
    for backend in hooks.failure_backends():
        backend(report())

    assert called == ["tracker", "mail", "1"]
    with pytest.raises(OptionInvalid, match="can't be a failure backend"):
        palermo.failure_backend("log")  # type: ignore[type-var]
    hooks.log_failure(report())
    assert [record.getMessage() for record in caplog.records] == [
        """ValueError: broken id=1 job=shop.work queue=jobs args="'x'" worker=pid:1@h"""
    ]
