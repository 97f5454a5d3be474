"""Palermo in a test: a fresh embedded broker, and a worker in the test's process."""

import asyncio
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from palermo.client import client as clients
from palermo.client.client import NOTHING, Call, Client
from palermo.client.failed_queues import browse_failed
from palermo.client.handle import Job
from palermo.contract import clock as process_clock
from palermo.contract.serialization import Accept
from palermo.core.queue_selection import QueueSelection
from palermo.errors import UsageError
from palermo.inspector.inspector import Inspector
from palermo.jobs import registry
from palermo.jobs.definition import JobDefinition
from palermo.jobs.options import EnqueueOptions, ManyOptions, PublishOptions
from palermo.settings.settings import Settings
from palermo.settings.table import SettingArgumentsAndUrl
from palermo.testing.enqueued import AnyJob, Enqueued, EnqueuedJob, call_text, listing, named
from palermo.testing.failures import JobFailure, failure_without_run, raise_all
from palermo.testing.local_pool import LocalRun
from palermo.testing.local_worker import LocalWorker, declare_entries, publish_due, subscribe
from palermo.testing.movable_clock import MovableClock
from palermo.worker.parent.queue_hooks import count_pending

#: Maximum number of rounds of `work_until_idle`, in case jobs enqueue each other forever.
MAX_ROUNDS = 1_000

#: An in-memory file system on Linux, so that tests don't wait for a disk.
_MEMORY = "/dev/shm"

#: Number of failed jobs, newest first, in which to look for jobs that failed without running.
_LATEST = 1_000

#: Called with each run, and with None at the end.
Put = Callable[[LocalRun | None], object]

#: Whether the running code is part of a job started by a test.
_inside: ContextVar[bool] = ContextVar("palermo.testing.inside", default=False)


class Palermo:
    """An embedded broker and a worker for one test. The fixture `palermo` is one.

    While it is open, everything that the program enqueues goes to this broker, even after `palermo.connect()`. Jobs
    wait until the test calls `work` or `work_until_idle`; with `inline`, they run as soon as they are enqueued. They
    run in the calling thread with the code of a real worker, including hooks, retries, unique keys, limits, results,
    events and batches.
    """

    def __init__(
        self,
        *,
        inline: bool = False,
        raise_failures: bool = True,
        accept: Iterable[str] = (),
        **settings: Unpack[SettingArgumentsAndUrl],
    ) -> None:
        """`accept` names additional serializers that the worker accepts. `settings` are Palermo's settings.

        Raises SettingInvalid.
        """
        #: Whether jobs run as soon as they are enqueued. Can be changed at any time.
        self.inline = inline
        #: Whether `work` and inline enqueuing raise the errors of jobs. Can be changed at any time.
        self.raise_failures = raise_failures
        #: All failed runs of this test, in order, including those whose errors were raised.
        self.failures: list[JobFailure] = []
        #: The clock that determines when jobs are due.
        self.clock = MovableClock()
        self._accept = Accept.default().also(*accept)
        self._stack = ExitStack()
        # Not `:memory:`, which would be lost when the client is closed before a fork.
        self._folder = tempfile.mkdtemp(prefix="palermo-", dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None)
        self._stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
        given: SettingArgumentsAndUrl = {"url": f"sqlite:///{self._folder}/jobs.db", "journal": "all"}
        self._client = _TestClient(Settings.load(**(given | settings)), self)
        self._enqueued = Enqueued(self._client, self._accept)
        self._thread: LoopThread | None = None
        self._since = 0.0
        #: Number of items that `palermo.resume` yields before it ends the run; None for no limit.
        self._items_left: int | None = None
        self._interrupt: BaseException | None = None
        #: Failures that haven't been raised yet.
        self._unraised: list[JobFailure] = []

    def __enter__(self) -> Self:
        before = process_clock.use(self.clock)
        self._stack.callback(process_clock.use, before)
        self._since = self.clock.now()
        self._stack.enter_context(clients.lend(self._client))
        self._stack.callback(self._close_thread)
        try:
            subscribe(self._client)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def __repr__(self) -> str:
        return f"<palermo in a test, {len(self.failures)} failed runs>"

    @property
    def client(self) -> Client:
        """This test's client, which is the default client while it is open."""
        return self._client

    def inspector(self) -> Inspector:
        """Return an inspector for this test's broker, like `palermo.inspector()`."""
        return Inspector(self._client)

    def enqueue(
        self, job: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] = NOTHING, **options: Unpack[EnqueueOptions]
    ) -> Job:
        """Like the function `palermo.enqueue`, whose module is hidden by the fixture's name."""
        return self._client.enqueue(job, args, kwargs, **options)

    def publish(self, topic: str, payload: Any = None, **options: Unpack[PublishOptions]) -> str:
        """Like the function `palermo.publish`, whose module is hidden by the fixture's name."""
        return self._client.publish(topic, payload, **options)

    # Running jobs

    def work(self, queues: str | Iterable[str] = "*") -> int:
        """Run the jobs that are due now, in the order in which a worker would take them. Returns the number of runs.

        Retries and jobs enqueued by these jobs wait for the next call. Raises the jobs' errors unless `raise_failures`
        is false.
        """
        __tracebackhide__ = True
        return self._run_all(queues, once=True)

    def work_until_idle(self, queues: str | Iterable[str] = "*") -> int:
        """Run jobs, including those enqueued by jobs, until none is due. Returns the number of runs.

        Scheduled jobs don't run; move the clock and call it again. After all jobs have run, raises their errors unless
        `raise_failures` is false.
        """
        __tracebackhide__ = True
        return self._run_all(queues, once=False)

    async def work_async(self, queues: str | Iterable[str] = "*") -> int:
        """Like `work`, for asyncio tests. Coroutine jobs run in the test's event loop."""
        __tracebackhide__ = True
        return await self._run_all_async(queues, once=True)

    async def work_until_idle_async(self, queues: str | Iterable[str] = "*") -> int:
        """Like `work_until_idle`, for asyncio tests. Coroutine jobs run in the test's event loop."""
        __tracebackhide__ = True
        return await self._run_all_async(queues, once=False)

    def interrupt_after(self, items: int) -> None:
        """Interrupt the run after `palermo.resume` has yielded this number of items, like a worker that stops.

        The job is enqueued again with its saved state, and the next `work` runs it.
        """
        self._items_left = items

    def declare_recurring(self, *jobs: AnyJob) -> None:
        """Declare these recurring jobs, like a worker that was started at the beginning of the test.

        Without arguments, declares all recurring jobs imported in this process, and those in the `schedule` setting.
        Move the clock and call `work` to run them.
        """
        names = {named(job)[0] for job in jobs}
        declare_entries(self._client, names, since=self._since)

    # Inspecting enqueued jobs

    def steps(self, workflow: Job[Any]) -> dict[str, str]:
        """Return the states of a workflow's steps by name. Raises NotFound."""
        return {step["name"]: step["state"] for step in self.inspector().workflows.show(workflow.id)["steps"]}

    def enqueued(self, job: AnyJob = None, /, *args: Any, **kwargs: Any) -> list[EnqueuedJob]:
        """Return all waiting jobs, those with this name, or those with these arguments.

        Includes jobs that wait for their time, a retry or a unique key, but not failed and cancelled jobs. Arguments
        with default values may be omitted. `unittest.mock.ANY` matches any value.
        """
        return self._enqueued.all() if job is None else self._enqueued.find(job, args, kwargs)

    def assert_enqueued(self, job: AnyJob, /, *args: Any, **kwargs: Any) -> EnqueuedJob:
        """Fail unless such a job is waiting (see `enqueued`). Returns the first one."""
        __tracebackhide__ = True
        found = self.enqueued(job, *args, **kwargs)
        if not found:
            raise AssertionError(f"no job {call_text(job, args, kwargs)} is enqueued. {self._enqueued_text()}")
        return found[0]

    def refute_enqueued(self, job: AnyJob = None, /, *args: Any, **kwargs: Any) -> None:
        """Fail if such a job is waiting (see `enqueued`). Without arguments, fail if any job is waiting."""
        __tracebackhide__ = True
        found = self.enqueued(job, *args, **kwargs)
        if found:
            what = "a job" if job is None else f"job {call_text(job, args, kwargs)}"
            raise AssertionError(f"{what} is enqueued:\n{listing(found)}")

    def _enqueued_text(self) -> str:
        enqueued = self._enqueued.all()
        return f"Enqueued jobs:\n{listing(enqueued)}" if enqueued else "Nothing is enqueued."

    # Internals

    def _run_all(self, queues: str | Iterable[str], *, once: bool) -> int:
        __tracebackhide__ = True
        selection, total = QueueSelection.parse(queues), 0
        for _ in _rounds(once):
            due = self._due(selection)
            ran = self._perform(selection, due) if due else 0
            total += ran
            if not ran:
                break
        self._raise()
        return total

    async def _run_all_async(self, queues: str | Iterable[str], *, once: bool) -> int:
        __tracebackhide__ = True
        selection, total = QueueSelection.parse(queues), 0
        for _ in _rounds(once):
            due = self._due(selection)
            ran = await self._perform_async(selection, due) if due else 0
            total += ran
            if not ran:
                break
        self._raise()
        return total

    def _due(self, selection: QueueSelection) -> int:
        """Return the number of due jobs in these queues."""
        self._client.run(publish_due)
        return self._client.run(lambda broker: count_pending(broker, selection, ()))

    @contextmanager
    def _round(self, selection: QueueSelection, jobs: int, put: Put) -> "Iterator[Future[int]]":
        """Enter a worker that runs this many jobs. The context's value is a future for the number of jobs that ran.

        `put` is called with each run, and with None at the end. An error, such as Ctrl-C, ends the worker immediately.
        """
        if self._thread is None:
            self._thread = LoopThread()
        worker = LocalWorker(
            self._client,
            registry,
            selection,
            self._accept,
            jobs=jobs,
            hand_over=put,
            failed=self._failed,
            stopping=self._interrupts_now,
        )
        ran = self._thread.start(worker.run())
        ran.add_done_callback(lambda _: put(None))
        token = _inside.set(True)
        try:
            yield ran
            ran.result()  # raises WorkerFailed
            if worker.failed_unrun:
                self._note_failed_unrun()
        except BaseException:
            if not ran.done():
                self._thread.loop.call_soon_threadsafe(worker.abandon)
            wait([ran])
            raise
        finally:
            _inside.reset(token)

    def _perform(self, selection: QueueSelection, jobs: int) -> int:
        """Run the jobs of one round in this thread."""
        runs: SimpleQueue[LocalRun | None] = SimpleQueue()
        with self._round(selection, jobs, runs.put) as ran:
            while (run := runs.get()) is not None:
                run.perform()
                self._raise_interrupt()
        return ran.result()

    async def _perform_async(self, selection: QueueSelection, jobs: int) -> int:
        """Run the jobs of one round in this event loop."""
        loop = asyncio.get_running_loop()
        runs: asyncio.Queue[LocalRun | None] = asyncio.Queue()
        with self._round(selection, jobs, lambda run: loop.call_soon_threadsafe(runs.put_nowait, run)) as ran:
            while (run := await runs.get()) is not None:
                await run.perform_async()
                self._raise_interrupt()
        return ran.result()

    def _interrupts_now(self) -> bool:
        """Return whether a loop must end before its next item."""
        if self._items_left is None:
            return False
        self._items_left -= 1
        if self._items_left >= 0:
            return False
        self._items_left = None
        return True

    def _note_failed_unrun(self) -> None:
        """Record jobs that failed without a run, for example because another job holds their unique key."""
        known = {one.id for one in self.failures}
        page = self._client.run(lambda broker: browse_failed(broker, offset=0, limit=_LATEST, newest=True))
        self._failed([failure_without_run(one) for one in page.messages if one.id not in known])

    def _raise_interrupt(self) -> None:
        """Raise the KeyboardInterrupt that was raised in a job, because Ctrl-C ends the test."""
        interrupt, self._interrupt = self._interrupt, None
        if interrupt is not None:
            raise interrupt

    def _failed(self, failures: list[JobFailure]) -> None:
        self.failures += failures
        self._unraised += failures
        for one in failures:
            if isinstance(one.error, KeyboardInterrupt):
                self._interrupt = one.error

    def _raise(self) -> None:
        """Raise the errors of jobs. Does nothing within a job, because the call in the test raises them."""
        __tracebackhide__ = True
        if _inside.get():
            return
        unraised, self._unraised = self._unraised, []
        if self.raise_failures:
            raise_all(unraised)

    def _after_enqueue(self) -> None:
        __tracebackhide__ = True
        if self.inline:
            self.work_until_idle()

    async def _after_enqueue_async(self) -> None:
        __tracebackhide__ = True
        if self.inline:
            await self.work_until_idle_async()

    def _close_thread(self) -> None:
        if self._thread is not None:
            self._thread.close()


class _TestClient(Client):
    """A test's client. In inline mode it runs each job right after storing it."""

    def __init__(self, settings: Settings, test: Palermo) -> None:
        super().__init__(settings)
        self._test = test

    def enqueue_as(
        self, id: str, job: JobDefinition | str, args: Sequence[Any], kwargs: Mapping[str, Any], /, **options: Any
    ) -> Job:
        __tracebackhide__ = True
        made = super().enqueue_as(id, job, args, kwargs, **options)
        self._test._after_enqueue()
        return made

    async def enqueue_async(
        self,
        job: JobDefinition | str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] = NOTHING,
        **options: Unpack[EnqueueOptions],
    ) -> Job:
        __tracebackhide__ = True
        made = await super().enqueue_async(job, args, kwargs, **options)
        await self._test._after_enqueue_async()
        return made

    def enqueue_many(self, calls: Iterable[Call], **options: Unpack[ManyOptions]) -> list[Job]:
        __tracebackhide__ = True
        made = super().enqueue_many(calls, **options)
        self._test._after_enqueue()
        return made

    def publish(self, topic: str, payload: Any = None, **options: Unpack[PublishOptions]) -> str:
        __tracebackhide__ = True
        made = super().publish(topic, payload, **options)
        self._test._after_enqueue()
        return made

    async def publish_async(self, topic: str, payload: Any = None, **options: Unpack[PublishOptions]) -> str:
        __tracebackhide__ = True
        made = await super().publish_async(topic, payload, **options)
        await self._test._after_enqueue_async()
        return made


def _rounds(once: bool) -> Iterable[int]:
    yield 0
    if once:
        return
    yield from range(1, MAX_ROUNDS)
    raise UsageError(
        f"jobs are still due after {MAX_ROUNDS:,} rounds of work_until_idle, so they seem to enqueue each other"
        " endlessly."
    )


T = TypeVar("T")


class LoopThread:
    """An event loop in its own thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="palermo-testing", daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Start a coroutine in the loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def close(self) -> None:
        """Stop the loop and its thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def _run(self) -> None:
        self.loop.run_forever()
