"""The jobs that mypy checks: a line that ends in `# wrong` must be an error, and no other may be.

Checked by test_typing.py with the settings of mypy.ini beside it.
"""

from typing import Any, assert_type

import palermo
from palermo.inspector.inspector import Inspector


@palermo.job
def resize(path: str, width: int = 640) -> int:
    return width


@palermo.job(queue="mail", serializer="msgpack")
def remind(who: str, *, day: int) -> None: ...


@palermo.job
async def fetch(url: str) -> bytes:
    return url.encode()


@palermo.job
class Count:
    def process(self, upto: int, *, step: int = 1) -> None: ...

    def before_process(self, upto: int, *, step: int = 1) -> bool:
        return upto > 0


@palermo.job(queue="mail")
class SendMail:
    def process(self, to: str, *, subject: str = "hi") -> str:
        return subject


@palermo.job
class Awaited:
    async def process(self, number: int) -> float:
        return number / 2


@palermo.job(name="mail.derived")
class Derived(palermo.JobClass):
    def process(self, to: str) -> str:
        return to


@palermo.job(batch=10, batch_wait=0.5)
def insert(rows: list[str]) -> int:
    return len(rows)


class InsertAll:
    def process(self, rows: list[str]) -> int:
        return len(rows)


InsertJob = palermo.job(batch=10)(InsertAll)


class Late:
    def process(self, number: int) -> int:
        return number


LateJob = palermo.job(Late)


assert_type(resize("x", 3), int)
assert_type(resize.enqueue("x"), palermo.Job[int])
assert_type(resize.enqueue("x").result(), int)
assert_type(resize.options(delay=3).enqueue("x").result(timeout=3), int)
assert_type(resize.enqueue_in(3, "x").result(), int)
assert_type(resize.enqueue_many([("a",)])[0].result(), int)
resize.enqueue("x", width=3)
resize.enqueue("x", 3)
resize.enqueue()  # wrong
resize.enqueue(3)  # wrong
resize.enqueue("x", colour="red")  # wrong
resize.options(queue="slow", id="a").enqueue("x")
resize.options(queue="slow").enqueue(3)  # wrong
resize.options(queue=3)  # wrong
resize.options(retries=3).enqueue("x")
resize.options(retries="3")  # wrong
resize.options(tries=3)  # wrong
resize.options(unique="until_done", on_duplicate="rerun").enqueue("x")
resize.options(unique="until_dome")  # wrong
resize.options(unique=60.0)
resize.options(on_duplicate="drop")  # wrong
palermo.job(backoff="exponentially")  # wrong
palermo.job(missed="never")  # wrong
palermo.job(backoff="exponential", missed="once", arguments="one", unique="until_start")
palermo.start_worker(["shop"], pool="threads")  # wrong
palermo.start_worker(["shop"], pool="thread", prefetch="auto", log_format="json")
resize.enqueue_many([("a",), {"path": "b"}])
resize.enqueue_many("ab")  # wrong
assert_type(resize.dequeue("x"), int)

resize.options(keep_result=True).enqueue("x").result(timeout=3)
resize.options(keep_result="yes")  # wrong
assert_type(resize.enqueue("x").wait(timeout=3) == "done", bool)
assert_type(palermo.job_by_id("1"), palermo.Job)
assert_type(palermo.enqueue("shop.tasks.resize").result(), Any)
any_handle: palermo.Job = resize.enqueue("x")
wide_handle: palermo.Job[float] = resize.enqueue("x")
narrow_handle: palermo.Job[str] = resize.enqueue("x")  # wrong
assert_type(list(palermo.track([1, 2])), list[int])

remind.enqueue("me", day=1)
remind.enqueue("me", 1)  # wrong
remind.enqueue("me", day="monday")  # wrong

assert_type(fetch.enqueue("http://example.org").result(), bytes)
assert_type(Count.enqueue(1).result(), None)
assert_type(SendMail.enqueue("a@b.c").result(), str)
assert_type(SendMail.options(queue="x").enqueue("a@b.c").result(), str)
assert_type(SendMail.enqueue_many([("a@b.c",)])[0].result(), str)
assert_type(Awaited.enqueue(1).result(), float)
assert_type(Derived.enqueue("a@b.c").result(), str)
assert_type(LateJob.enqueue(1).result(), int)
fetch.enqueue(b"http://example.org")  # wrong

assert_type(insert.enqueue("a"), palermo.Job[None])
assert_type(insert(["a"]), int)
insert.enqueue(["a"])  # wrong
insert.enqueue(1)  # wrong
insert.enqueue("a", "b")  # wrong
insert.options(queue="x").enqueue("a")
insert.enqueue_many([("a",), ("b",)])
assert_type(insert.dequeue("a"), int)
InsertJob.enqueue("a")
InsertJob.enqueue(["a"])  # wrong

Count.enqueue(3, step=2)
Count.enqueue("3")  # wrong
Count.options(queue="x").enqueue(3)
Count.options(queue="x").enqueue("3")  # wrong
assert_type(Count(), Count)
SendMail.enqueue("a@b.c", subject="hello")
SendMail.enqueue("a@b.c", "hello")  # wrong
SendMail.enqueue_many([("a@b.c",)])

Derived.enqueue("a@b.c")
Derived.enqueue(3)  # wrong

LateJob.enqueue(3)
LateJob.enqueue("3")  # wrong


async def main() -> None:
    assert_type(await resize.enqueue_async("x"), palermo.Job[int])
    assert_type(await (await fetch.enqueue_async("x")).result_async(), bytes)
    await resize.enqueue_async(3)  # wrong
    await Count.enqueue_async("3")  # wrong


palermo.enqueue("shop.tasks.resize", ["x.png"], queue="slow")
palermo.connect("sqlite:///jobs.db", exchange="shop")
assert_type(palermo.inspector(), Inspector)
job = palermo.current_job()
if job is not None:
    assert_type(job.id, str)
    assert_type(job.attempt, int)
    job.progress(0.5, "half")
    job.progress("half")  # wrong
    job.log("line")


@palermo.hook
def before_enqueue(definition: object, *args: object, **kwargs: object) -> None: ...


@resize.hook
def after_enqueue(path: str, width: int = 640) -> None: ...


assert_type(after_enqueue("x"), None)
