"""Jobs that spoil the process they run in, and one that says what it finds."""

import json
import os
import resource
import signal
import socket
import sys
import tempfile

from crew import write

import palermo
from palermo.worker.signals import CANCEL


def deleted_folder():
    os.chdir(folder := tempfile.mkdtemp())
    os.rmdir(folder)


def sockets():
    """Put a socket of its own in the place of each that is there."""
    own, _ = socket.socketpair()
    for descriptor in range(3, 64):
        try:
            socket.socket(fileno=os.dup(descriptor)).detach()
        except OSError:
            continue
        os.dup2(own.fileno(), descriptor)


NOFILE = resource.RLIMIT_NOFILE

SPOILS = {
    "limit": lambda: resource.setrlimit(NOFILE, (3, resource.getrlimit(NOFILE)[1])),
    "memory": lambda: resource.setrlimit(resource.RLIMIT_AS, (2**36, 2**36)),
    "folder": lambda: os.chdir(tempfile.mkdtemp()),
    "deleted_folder": deleted_folder,
    "umask": lambda: os.umask(0o777),
    "mask": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, CANCEL]),
    "handler": lambda: signal.signal(CANCEL, signal.SIG_IGN),
    "pipe_handler": lambda: signal.signal(signal.SIGPIPE, signal.SIG_DFL),
    "alarm": lambda: signal.alarm(1),
    "output": lambda: os.close(1),
    "errors": lambda: os.dup2(os.open(os.devnull, os.O_WRONLY), 2),
    "descriptors": lambda: os.closerange(3, 256),
    "sockets": sockets,
}


@palermo.job
def spoil(how):
    SPOILS[how]()


@palermo.job
def spoil_and_fail(how):
    SPOILS[how]()
    raise ValueError("spoiled")


def state():
    return {
        "limits": [resource.getrlimit(NOFILE), resource.getrlimit(resource.RLIMIT_AS)],
        "folder": os.getcwd(),
        "umask": os.umask(0o022),
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "handlers": [str(signal.getsignal(number)).split(" at ")[0] for number in (CANCEL, signal.SIGPIPE)],
        "alarm": signal.getitimer(signal.ITIMER_REAL)[0],
        "streams": [os.fstat(descriptor).st_ino for descriptor in (1, 2)],
    }


@palermo.job
def look(path):
    found = state()
    os.umask(found["umask"])
    write(path, json.dumps(found, default=str))
    sys.stdout.write("looked\n")


@palermo.job
def borrow(path):
    """Changes all of it, and puts it back."""
    found = os.getcwd()
    os.chdir("/")
    old = os.umask(0)
    limits = resource.getrlimit(NOFILE)
    resource.setrlimit(NOFILE, (64, limits[1]))
    resource.setrlimit(NOFILE, limits)
    handler = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, handler)
    os.umask(old)
    os.chdir(found)
    write(path, str(os.getpid()))
