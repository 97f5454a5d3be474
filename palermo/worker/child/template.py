"""The template: a child process that imports the user's modules once, and from which the slots are forked.

It is a synchronous program with a single thread, because only such a program can be forked safely. It reads the
parent's frames and answers in JSON:

    parent -> template                       template -> parent
    (at the start)                           {"ready": …} or {"unstartable": …}
    ("fork", slot) and the slot's socket     {"forked": slot, "pid": …} or {"unforked": slot, "error": …}
    ("kill", slot)                           {"exited": slot, "status": …}
    ("signal", slot, number)
    ("hook", name, arguments…)               {"hooked": name, "answer": …}
    end of file                              exits
"""

import gc
import importlib
import logging
import math
import os
import pickle
import select
import signal
import socket
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, NoReturn

from msgspec import to_builtins

from palermo import blocked_signals
from palermo.client import client
from palermo.contract.serialization import Serializers
from palermo.core.queue_selection import QueueSelection
from palermo.core.text import nearest
from palermo.core.topology import worker_tag
from palermo.errors import MediaTypeUnknown, PalermoError
from palermo.jobs import hooks, registry
from palermo.jobs.definition import JobDefinition
from palermo.jobs.modules import JobModules, describe, expand, import_advice, with_user_frames
from palermo.settings.settings import Settings, make_imports_importable
from palermo.worker import signals
from palermo.worker.child import registration, slot
from palermo.worker.child.executor import Executor, ReturnValues
from palermo.worker.child.interrupts import Interruptible, Interrupts
from palermo.worker.ipc.frames import FrameBuffer, pack_reply
from palermo.worker.ipc.shared_marks import SharedMarks
from palermo.worker.options import WorkerFailed, WorkerOptions
from palermo.worker.process import (
    close_stdin,
    die_with,
    end_by_atexit,
    exit_now,
    flush,
    forget_atexit,
    own_group,
    set_title,
)

log = logging.getLogger("palermo.worker")

#: Milliseconds between checks for dead slots without a signal, because user code may have replaced the SIGCHLD handler.
_NET_MS = 5_000


class Template:
    """The template process: its slots, and the data that it needs to fork them."""

    def __init__(
        self, control: socket.socket, options: WorkerOptions, *, parent: int, host: str, stacks: int, marks: SharedMarks
    ) -> None:
        self._control = control
        #: The descriptor of the file for slots' stacks.
        self._stacks = stacks
        self._marks = marks
        self._options = options
        self._parent = parent
        self._host = host
        self._slots: dict[int, int] = {}
        self._frames = FrameBuffer()
        self._ends: deque[int] = deque()
        self._context: hooks.WorkerContext | None = None
        self._serializers: Serializers
        self._return_values: ReturnValues

    def run(self) -> NoReturn:
        """Import the modules, then execute the parent's frames until it closes the socket."""
        signals.survive()
        blocked_signals.unblock()
        die_with(self._parent)
        own_group()
        close_stdin()
        set_title("palermo template: importing")
        # A process forked by user code must not keep this socket open, because the parent detects the template's end by
        # its closing.
        os.register_at_fork(after_in_child=self._control.close)
        try:
            self._report(self._start())
        except PalermoError as error:
            name = "" if isinstance(error, WorkerFailed) else f"{type(error).__name__}: "
            notes = getattr(error, "__notes__", [])
            misused = isinstance(error, MediaTypeUnknown)
            self._report({"unstartable": f"{name}{error}", "notes": notes, "misused": misused})
            exit_now(1)
        signals.survive()  # again, because the modules may have installed their own handlers
        set_title("palermo template")
        self._serve()

    def _start(self) -> dict[str, Any]:
        """Import the user's modules, and return their registrations for the parent."""
        settings = self._options.settings
        client.use(client.Client(settings, warns=False))
        if "" not in sys.path and os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        make_imports_importable()
        with _warning_about_enqueues():
            for module in expand(self._options.modules):
                import_module(module)
        chosen = client.default_client()
        if _place(chosen.settings) != _place(settings):
            raise WorkerFailed(
                f"a module connects to {chosen.settings.address} with exchange {chosen.settings.exchange!r}, but this"
                f" worker serves {settings.address} with exchange {settings.exchange!r}, so it would not get the"
                " program's jobs. Instead of calling palermo.connect, set PALERMO_URL and PALERMO_EXCHANGE, which"
                " programs and workers read."
            )
        # After the imports, because modules may add or remove serializers, or change the default queue.
        settings = chosen.settings
        self._serializers = chosen.serializers
        self._serializers.check(self._options.accept)
        self._return_values = ReturnValues(self._serializers, serializer=settings.serializer, limit=settings.max_result)
        queues = registration.queues(registry, settings)
        selection = self._options.queues or (QueueSelection(queues) if queues else None)
        if selection is None:
            raise WorkerFailed(
                f"no job in {', '.join(self._options.modules)}, so there is no queue to serve."
                " Decorate one with @palermo.job, or name queues with -q."
            )
        self._context = hooks.WorkerContext(
            id=f"pid:{self._parent}@{self._host}",
            pid=self._parent,
            host=self._host,
            queues=selection.select(queues),
        )
        for name in selection.names:
            if name not in queues:
                # Before the parent declares it: on RabbitMQ a mistyped queue exists until an operator deletes it.
                log.warning("no job of these modules uses this queue queue=%s%s", name, nearest(name, queues))
        for hook in hooks.registered.of("before_first_fork"):
            try:
                hook(self._context)
            except BaseException as error:
                log.debug("before_first_fork hook failed", exc_info=True)
                failed = WorkerFailed(f"hook {hook.__qualname__} raised {describe(error)}")
                raise with_user_frames(failed, error) from error
        # Slots share the imported modules' memory. Without this, their first garbage collection would write to every
        # page, and so copy it.
        gc.collect()
        gc.freeze()
        recurring = self._options.modules if self._options.scheduler else ()
        registered = registration.collect(registry, client.default_client(), recurring=recurring)
        return {"ready": to_builtins(registered, enc_hook=dict)}

    def _serve(self) -> NoReturn:
        wake, woken = socket.socketpair()
        wake.setblocking(False)
        woken.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
        self._wakeup = (wake, woken)
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        poll.register(self._control, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll(_NET_MS)]
            if wake.fileno() in ready:
                wake.recv(4096)
            # First, so that the parent learns of a slot's end before the next fork.
            self._reap()
            if self._control.fileno() in ready:
                self._obey()

    def _obey(self) -> None:
        try:
            data, ends, _, _ = socket.recv_fds(self._control, 65_536, 64)
        except OSError:
            data, ends = b"", []
        if not data:
            exit_now(0)
        self._ends.extend(ends)
        for payload in self._frames.feed(data):
            match pickle.loads(payload):
                case ("fork", number):
                    self._fork(number, socket.socket(fileno=self._ends.popleft()))
                # The pid still belongs to the slot, running or not, because only the template reaps its slots.
                case ("kill", number) if number in self._slots:
                    signals.kill(self._slots[number])
                case ("signal", number, sent) if number in self._slots:
                    os.kill(self._slots[number], sent)
                case ("hook", name, *more):
                    self._report({"hooked": name, "answer": self._hook(name, *more)})

    def _fork(self, number: int, end: socket.socket) -> None:
        self._hook("before_fork")
        # If a module or hook has enqueued a job, the client has a thread, which makes forking unsafe.
        client.default_client().close()
        flush()
        template = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            end.close()
            self._report({"unforked": number, "error": str(error)})
            return
        if pid == 0:
            self._become_slot(number, end, template)
        end.close()
        self._slots[number] = pid
        self._report({"forked": number, "pid": pid})

    def _become_slot(self, number: int, end: socket.socket, template: int) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            slot.prepare(end, template=template, stacks=self._stacks)
            for own in self._wakeup:
                own.close()
            for other in self._ends:
                os.close(other)
            if self._options.run_atexit:
                forget_atexit()
            self._hook("after_fork")
            self._serve_slots(end, number)
        except BaseException:
            log.exception("slot ended with an internal error slot=%d", number)
        finally:
            exit_now(70)

    def _serve_slots(self, end: socket.socket, number: int) -> NoReturn:
        """Run the jobs of this slot, or of all slots if they share a process."""
        pool = self._options.pool
        leave = end_by_atexit if self._options.run_atexit else partial(exit_now, 0)
        if pool == "process":
            interrupts = Interrupts()
            interrupts.install()
            slot.serve(end, number=number, executor=self._executor(number, interrupts), leave=leave)
        # Imported here because slots of a process pool don't need it.
        from palermo.worker.child.shared_slots import AsyncSlots, SharedSlots, serve_threads

        slots = SharedSlots(end, pool=pool, slots=self._options.concurrency, executor=self._executor)
        if pool == "thread":
            serve_threads(end, slots, leave)
        AsyncSlots(end, slots, registry, leave).serve()

    def _executor(self, number: int, interrupts: Interruptible) -> Executor:
        return Executor(
            registry=registry,
            serializers=self._serializers,
            accept=self._options.accept,
            worker=worker_tag(self._parent, self._host, number),
            modules=JobModules(self._options.modules),
            interrupts=interrupts,
            return_values=self._return_values,
            on_mark=partial(self._marks.mark, number),
            stopping=self._marks.stopping,
        )

    def _reap(self) -> None:
        for number, pid in list(self._slots.items()):
            try:
                ended, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:  # user code has already waited for it
                ended, status = pid, 0
            if ended:
                del self._slots[number]
                self._report({"exited": number, "status": os.waitstatus_to_exitcode(status)})

    def _hook(self, name: str, *more: Any) -> float:
        """Run the worker hooks with this name. Returns the highest number of seconds that one returned, or 0."""
        answer = 0.0
        for hook in hooks.registered.of(name):
            try:
                answer = max(answer, _seconds(hook(self._context, *more)))
            except BaseException:
                log.exception("worker hook failed hook=%s", hook.__qualname__)
        flush()
        return answer

    def _report(self, value: dict[str, Any]) -> None:
        try:
            self._control.sendall(pack_reply(value))
        except OSError:
            exit_now(1)


def _place(settings: Settings) -> tuple[object, ...]:
    """Return the settings that determine where jobs are stored, without user or password."""
    address = settings.address
    path = address.path if address.path in ("", ":memory:") else os.path.abspath(address.path)
    return address.scheme, address.hosts, address.vhost, address.service, path, settings.exchange, settings.prefix


def _seconds(returned: object) -> float:
    """Return the seconds that a hook returned; 0 for anything but a finite number."""
    if isinstance(returned, int | float) and not isinstance(returned, bool) and math.isfinite(returned):
        return float(returned)
    return 0.0


@contextmanager
def _warning_about_enqueues() -> Iterator[None]:
    """Warn about each module line that enqueues a job during import."""
    warned: set[tuple[str, int]] = set()

    def after_enqueue_in_import(definition: JobDefinition, /, *args: Any, **kwargs: Any) -> None:
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code.co_name != "<module>":
            frame = frame.f_back
        if frame is None:  # in one of the module's threads
            return
        place = str(frame.f_globals.get("__name__")), frame.f_lineno
        if place not in warned:
            warned.add(place)
            log.warning(
                "module enqueues a job when imported, so each start of a worker enqueues another module=%s line=%d"
                " job=%s",
                *place,
                definition.name,
            )

    hooks.registered.add(after_enqueue_in_import)
    try:
        yield
    finally:
        hooks.registered.remove(after_enqueue_in_import)


def import_module(name: str) -> None:
    """Import a user module. Raises WorkerFailed for any exception in it."""
    try:
        importlib.import_module(name)
    except BaseException as error:  # an import runs user code, which may even call sys.exit()
        log.debug("import failed module=%s", name, exc_info=True)
        text = f"cannot import module {name!r}: {describe(error)}{import_advice(name, error)}"
        raise with_user_frames(WorkerFailed(text), error) from error
