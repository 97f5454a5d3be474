"""The pools whose slots share a child: of threads, and of coroutines.

One child, the current one, takes all jobs (crews.py). Nothing can be done to one job by force but to end
its child, so a child is replaced rather than mended: it is *retired* (takes no more jobs,
ends when those in it have) and a fresh one takes the next. Where a child dies with one job in
it, that job fails. With several nobody knows whose fault it was, so each runs again *alone*,
in a fresh child of its own, within the same delivery: a second death convicts exactly one.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

from palermo.core.failure import Failure, from_exception
from palermo.core.lifecycle import CANCELLED, INTERRUPTED, Cancelled, Interrupted, Raised, RunResult
from palermo.core.message import Message
from palermo.errors import JobCancelled, JobCrashed, JobError, JobOutOfMemory, JobTerminated, JobTimeout
from palermo.worker.children import LINGER, Children, Gone, SlotLost
from palermo.worker.crew import Crew, Run
from palermo.worker.crews import Crews
from palermo.worker.keeping import SUCCEEDED
from palermo.worker.limits import MEMORY_EVERY, Limits, lock_expired
from palermo.worker.pipe import judged, pack_message
from palermo.worker.pool import OnReport, Registered, unheard
from palermo.worker.reporting import Report
from palermo.worker.signals import DUMP
from palermo.worker.stacks import StackFile

log = logging.getLogger("palermo.worker")

#: Jobs that run alone at a time. They are as many processes, and each may be the one that eats all memory.
_ALONE = 4

#: Seconds within which a child that makes progress answers.
_PROMPT = 1.0


_MEANINGLESS = "sent an answer that means nothing"


class _Stopped(Exception):
    """A job is not to be run, or its result means nothing; the text says so if no sentence does."""


class SharedRunner:
    """Slots in one child of the template."""

    def __init__(self, children: Children, *, limits: Limits, stacks: StackFile) -> None:
        self.on_report: OnReport = unheard
        self._children = children
        self._limits = limits
        self._stacks = stacks
        self._timeouts: Mapping[str, float] = {}
        self._locks: Mapping[str, float] = {}
        self._crews = Crews(children, limits, self, self._spawn)
        #: By slot, whatever the runner was given and has not given back.
        self._runs: dict[int, Run] = {}
        self._alone = asyncio.Semaphore(_ALONE)
        self._terminated = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def gone(self) -> asyncio.Event:
        return self._children.gone

    @property
    def ending(self) -> str:
        return self._children.link.ending

    @property
    def template(self) -> int:
        return self._children.link.pid

    async def start(self) -> Registered:
        registered = await self._children.open()
        self._timeouts, self._locks = registered.timeouts, registered.locks
        if self._limits.max_memory is not None:
            self._spawn(self._watch_memory())
        return registered

    async def prepare(self, slot: int) -> None:
        with suppress(Gone):
            await self._crews.open()

    def begin(self, slot: int, message: Message, done: Callable[[RunResult], None]) -> bool:
        crew = self._crews.current
        if crew is None or self._terminated or slot in self._runs:
            return False
        run = self._runs[slot] = Run(slot, self._limits.limited(message, self._timeouts, self._locks), done)
        self._start(crew, run)
        crew.write_packed(pack_message("run", run.message, slot))
        return True

    async def run(self, slot: int, message: Message) -> RunResult:
        run = self._runs[slot] = Run(slot, self._limits.limited(message, self._timeouts, self._locks))
        return await self._result(run, self._run(run))

    async def hook(self, name: str) -> None:
        await self._children.link.hook(name)

    async def stack(self, slot: int) -> str:
        run = self._runs.get(slot)
        if run is None or run.crew is None:
            return ""
        crew = run.crew
        with suppress(TimeoutError):
            return await asyncio.wait_for(crew.ask_stack(slot), _PROMPT)
        # A job holds the GIL, or the loop: then from C, all threads at once.
        self._stacks.clear()
        self._children.signal(crew, DUMP)
        return await self._stacks.answer()

    def kill_jobs(self) -> None:
        for run in self._runs.values():
            run.sentence = run.sentence or JobCrashed("the job's process was killed by the operator (USR1)")
        for crew in [crew for crew in self._crews.living if crew.runs]:
            self._crews.retire(crew, "its jobs were killed by the operator")
            self._kill(crew)

    def cancel(self, slot: int) -> None:
        run = self._runs.get(slot)
        if run is None:
            return
        run.cancelled = True
        if run.crew is None:
            run.sentence = JobCancelled("")
            return
        run.tell(JobCancelled("the job was cancelled; clean up and leave"))
        self._limit(run, self._limits.timeout_grace, JobCancelled(""))

    def terminate(self) -> None:
        self._terminated = True
        for run in self._runs.values():
            run.tell(
                JobTerminated("the worker ends, and this job is given back to run again elsewhere; clean up and leave")
            )

    def drain(self) -> None:
        self._children.draining.set()

    def kill(self) -> None:
        self._children.kill()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._crews.close()
        await self._children.close()
        self._stacks.close()

    # One job.

    async def _result(self, run: Run, work: Coroutine[Any, Any, RunResult]) -> RunResult:
        """What this gives, or what becomes of the job where it cannot be run to its end."""
        try:
            return await work
        except _Stopped as why:
            return await self._judge(run, JobCrashed(f"the job's process {why}"))
        except Gone:
            # What ran is over, and no process can be had to run it in again.
            return INTERRUPTED
        finally:
            del self._runs[run.slot]

    async def _run(self, run: Run) -> RunResult:
        """Run it in the child that takes jobs now. Raises Gone, _Stopped."""
        crew = await self._crews.open()
        try:
            return await self._run_in(crew, run)
        except SlotLost as error:
            return await self._after(crew, run, str(error))

    async def _run_in(self, crew: Crew, run: Run) -> RunResult:
        """Have this child run it, and see to its time limit. Raises SlotLost, _Stopped."""
        if self._is_over(run):
            self._crews.look_at(crew)
            raise _Stopped("did not run it")
        self._start(crew, run)
        try:
            result = await crew.ask(run.slot, pack_message("run", run.message, run.slot))
        finally:
            crew.leave(run)
        self._crews.look_at(crew)
        if not self._means(run, result):
            raise _Stopped(_MEANINGLESS)
        return result

    def _start(self, crew: Crew, run: Run) -> None:
        """It is this child's now, with a time limit if it has one."""
        crew.enter(run)
        timeout, lock_for = run.message.timeout, run.message.lock_for
        if timeout is not None:
            run.timer = asyncio.get_running_loop().call_later(timeout, self._overrun, run, timeout)
        if lock_for is not None:
            run.lock = asyncio.get_running_loop().call_later(lock_for, self._condemn, run, lock_expired(lock_for))
        self._crews.look_at(crew)

    def _means(self, run: Run, result: RunResult) -> bool:
        """Whether a child may say so of it: only who was told to end is interrupted or cancelled."""
        if result is SUCCEEDED:
            return True
        return not (
            (isinstance(result, Interrupted) and not self._terminated)
            or (isinstance(result, Cancelled) and not run.cancelled)
        )

    # What crews tell.

    def answered(self, crew: Crew, run: Run, result: RunResult) -> None:
        self._crews.look_at(crew)
        assert run.done is not None
        if self._means(run, result):
            del self._runs[run.slot]
            run.done(result)
        else:
            self._spawn(
                self._mourn(run, self._judge(run, JobCrashed("the job's process sent an answer that means nothing")))
            )

    def lost(self, crew: Crew, run: Run, why: str) -> None:
        self._spawn(self._mourn(run, self._after(crew, run, why)))

    def reported(self, slot: int, report: Report) -> None:
        self.on_report(slot, report)

    def ended(self, crew: Crew) -> None:
        self._crews.ended(crew)

    async def _mourn(self, run: Run, work: Coroutine[Any, Any, RunResult]) -> None:
        """Find out what becomes of a job that nobody waits for."""
        result: RunResult = INTERRUPTED
        try:
            result = await self._result(run, work)
        except Exception:  # the job goes back, whatever is wrong with us
            log.exception("cannot tell how a job ended, giving it back: a bug id=%s", run.message.id)
        assert run.done is not None
        run.done(result)

    def _is_over(self, run: Run) -> bool:
        """Whether it is not to be run any more."""
        return run.sentence is not None or self._terminated

    def _overrun(self, run: Run, timeout: float) -> None:
        run.tell(JobTimeout(f"the job ran longer than its timeout of {timeout:g} s"))
        grace = self._limits.timeout_grace
        text = f"the job's process was killed: it ran {grace:g} s longer than its timeout of {timeout:g} s"
        self._limit(run, grace, JobTimeout(text))

    def _limit(self, run: Run, seconds: float, error: JobError) -> None:
        """Condemn it then, unless it has ended."""
        if run.timer is not None:
            run.timer.cancel()
        run.timer = asyncio.get_running_loop().call_later(seconds, self._condemn, run, error)

    def _condemn(self, run: Run, error: JobError) -> None:
        """End it by force: it fails with this error, once its child is dead."""
        run.sentence = error
        if run.crew is not None:
            self._crews.retire(run.crew, f"job {run.message.id} did not end")
            self._spawn(self._put_down(run.crew))

    async def _put_down(self, crew: Crew) -> None:
        """Kill a child with a condemned job in it, once what else runs there has finished, or had its chance to."""
        others = [run for run in crew.runs.values() if run.sentence is None]
        if others and self._limits.timeout_grace and await crew.ping(_PROMPT):
            await crew.without(others, self._limits.timeout_grace)
        if any(run.sentence is not None for run in crew.runs.values()):
            self._kill(crew)

    def _kill(self, crew: Crew) -> None:
        """Kill a child because of its condemned jobs; the others in it are given back."""
        if crew.pid is None:
            # It lives, and the template's word of it is on its way.
            asyncio.get_running_loop().call_later(LINGER, self._kill, crew)
            return
        crew.condemned = True
        guilty = " ".join(run.message.id for run in crew.runs.values() if run.sentence is not None)
        for run in crew.runs.values():
            if run.sentence is None:
                log.warning(
                    "process killed under a job that did nothing wrong id=%s job=%s because_of=%s",
                    run.message.id,
                    run.message.job,
                    guilty,
                )
        self._children.condemn(crew)

    async def _after(self, crew: Crew, run: Run, error: str) -> RunResult:
        """What becomes of a job whose child has died. Raises Gone, _Stopped."""
        why = await self._children.fate(crew, error)
        if crew.condemned and run.sentence is None:
            return INTERRUPTED
        # With the template all children die, and none can be had to try jobs in: they fail, as those of processes do.
        known = crew.victims == 1 and not crew.suspected
        if known or run.sentence is not None or self.gone.is_set():
            return await self._judge(run, JobCrashed(f"the job's process {why}"))
        log.warning(
            "process died with %d jobs in it, this one runs again alone id=%s job=%s fate=%r",
            crew.victims,
            run.message.id,
            run.message.job,
            why,
        )
        async with self._alone:
            if self._is_over(run):
                raise _Stopped(why)
            crew = await self._crews.launch()
            crew.retired = True
            try:
                return await self._run_in(crew, run)
            except SlotLost as lost:
                why = await self._children.fate(crew, str(lost))
        return await self._judge(run, JobCrashed(f"the job's process {why}"))

    async def _judge(self, run: Run, error: JobError) -> RunResult:
        """What a job comes back as that was ended from outside: by its sentence, or else by this error."""
        if self._children.killed or self._terminated:
            return INTERRUPTED
        error = run.sentence or error
        if isinstance(error, JobCancelled):
            return CANCELLED
        failure = from_exception(error, failed_at=int(time.time()))
        return await self._ask_policy(run.message, failure)

    async def _ask_policy(self, message: Message, failure: Failure) -> RunResult:
        """Have a child of its own say what becomes of it, and call its hooks, so that they harm no other job; once."""
        values = {name: getattr(failure, name) for name in Failure.__slots__}
        try:
            async with self._alone:
                crew = await self._crews.launch()
                crew.retired = True
                try:
                    answer = await crew.ask(1, pack_message("crashed", message, values, 1))
                    self._crews.look_at(crew)
                    return judged(answer, failure)
                except SlotLost as error:
                    why = await self._children.fate(crew, str(error))
                    log.error("on_failure hooks crashed too id=%s job=%s error=%r", message.id, message.job, why)
        except Gone:
            log.warning("on_failure hooks not called, no slot to run them id=%s job=%s", message.id, message.job)
        # Nobody can be asked what its policy is.
        return Raised(failure)

    async def _watch_memory(self) -> None:
        """Whose memory it is nobody can tell: a child that is too large is retired, its jobs may finish, and then
        each that has not runs again alone, where it can be told."""
        while True:
            await asyncio.sleep(MEMORY_EVERY)
            for crew in [crew for crew in self._crews.living if crew.runs]:
                why = self._limits.bloated(crew.pid)
                if not why:
                    continue
                self._crews.retire(crew, why)
                now = time.monotonic()
                crew.bloated_since = crew.bloated_since or now
                if crew.jobs == 1:
                    for run in crew.runs.values():
                        if run.sentence is None:
                            self._condemn(run, JobOutOfMemory(f"the job's process was killed: {why}"))
                elif now - crew.bloated_since >= self._limits.timeout_grace or self._limits.bloated(crew.pid, times=2):
                    log.warning("process killed pid=%s jobs=%d reason=%r", crew.pid, len(crew.runs), why)
                    crew.suspected = True
                    self._children.condemn(crew)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
