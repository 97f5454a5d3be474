"""The jobs that mypy checks: a line that ends in `# wrong` must be an error, and no other may be.

Checked by test_typing.py with the settings of mypy.ini beside it.
"""

from typing import assert_type

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
    def process(self, to: str, *, subject: str = "hi") -> None: ...


@palermo.job(name="mail.derived")
class Derived(palermo.JobClass):
    def process(self, to: str) -> None: ...


class Late:
    def process(self, number: int) -> None: ...


LateJob = palermo.job(Late)


assert_type(resize("x", 3), int)
assert_type(resize.enqueue("x"), palermo.Job)
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
resize.enqueue_many([("a",), {"path": "b"}])
resize.enqueue_many("ab")  # wrong
assert_type(resize.dequeue("x"), int)

resize.options(keep_result=True).enqueue("x").result(timeout=3)
resize.options(keep_result="yes")  # wrong
assert_type(resize.enqueue("x").wait(timeout=3) == "done", bool)
assert_type(palermo.job_by_id("1"), palermo.Job)
assert_type(list(palermo.track([1, 2])), list[int])

remind.enqueue("me", day=1)
remind.enqueue("me", 1)  # wrong
remind.enqueue("me", day="monday")  # wrong

fetch.enqueue("http://example.org")
fetch.enqueue(b"http://example.org")  # wrong

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
    assert_type(await resize.enqueue_async("x"), palermo.Job)
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
