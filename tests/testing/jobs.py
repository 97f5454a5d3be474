"""Jobs of the tests of palermo.testing. They write what they did to a list."""

import asyncio
import threading
import time
from typing import Any

import palermo

#: What ran, in order. The tests clear it.
ran: list[Any] = []


@palermo.job
def add(a: int, b: int = 2) -> int:
    ran.append((a, b))
    return a + b


@palermo.job(keep_result=True)
def kept(a: int) -> int:
    return 2 * a


@palermo.job(queue="mail")
def mail(to: str, *, copies: tuple[str, ...] = ()) -> None:
    ran.append(to)


@palermo.job
def outer(depth: int = 1) -> None:
    ran.append(f"outer {depth} begins")
    if depth:
        outer.enqueue(depth - 1)
    ran.append(f"outer {depth} ends")


@palermo.job
def endless() -> None:
    endless.enqueue()


class Broken(Exception):
    """What broken jobs raise."""


def break_down() -> None:
    raise Broken("it broke")


@palermo.job
def broken() -> None:
    ran.append("broken")
    break_down()


@palermo.job(retries=2, backoff=60)
def retried(times: int = 9) -> None:
    job = palermo.current_job()
    assert job is not None
    ran.append(job.attempt)
    if job.attempt <= times:
        raise Broken(f"run {job.attempt}")


@palermo.job
def outer_of_broken() -> None:
    broken.enqueue()
    ran.append("outer goes on")


@palermo.job
async def coroutine(text: str) -> str:
    ran.append((text, threading.current_thread().name))
    return text


@palermo.job(unique="until_done")
def unique(text: str) -> None:
    ran.append(text)


@palermo.job(limit=1)
def limited(depth: int) -> None:
    ran.append(f"limited {depth} begins")
    if depth:
        limited.enqueue(depth - 1)
    ran.append(f"limited {depth} ends")


@palermo.job(cron="0 3 * * *")
def nightly() -> None:
    ran.append("nightly")


@palermo.job(every=60, missed="all")
def every_minute() -> None:
    ran.append("minute")


@palermo.subscribe("test.done", group="of_tests")
def heard(payload: Any) -> None:
    ran.append(("heard", payload))


@palermo.job
def where() -> None:
    ran.append(threading.current_thread().name)


@palermo.job
def turns(started: threading.Event | None = None) -> None:
    ran.append("turning")
    try:
        while True:
            time.sleep(0.005)
    finally:
        ran.append("turned")


@palermo.job
def interrupted() -> None:
    raise KeyboardInterrupt


#: The event loops in which `in_loop` ran.
loops: list[asyncio.AbstractEventLoop] = []


@palermo.job
async def in_loop() -> None:
    loops.append(asyncio.get_running_loop())
