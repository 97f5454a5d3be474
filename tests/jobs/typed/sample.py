"""Class jobs that derive from nothing: the mypy plugin gives them the methods of a job.

A line that ends in `# wrong` must be an error, and no other may be. Checked by test_typing.py with
its plugin.
"""

from typing import assert_type

import palermo


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


class InsertAll:
    def process(self, rows: list[str]) -> int:
        return len(rows)


InsertJob = palermo.job(batch=10)(InsertAll)


class Late:
    def process(self, number: int) -> int:
        return number


LateJob = palermo.job(Late)


assert_type(Count(), Count)
assert_type(Count.enqueue(3, step=2).result(), None)
Count.enqueue("3")  # wrong
Count.options(queue="x").enqueue(3)
Count.options(queue="x").enqueue("3")  # wrong
assert_type(SendMail.enqueue("a@b.c", subject="hello").result(), str)
SendMail.enqueue("a@b.c", "hello")  # wrong
assert_type(SendMail.options(queue="x").enqueue("a@b.c").result(), str)
assert_type(SendMail.enqueue_many([("a@b.c",)])[0].result(), str)
assert_type(Awaited.enqueue(1).result(), float)
assert_type(Derived.enqueue("a@b.c").result(), str)
Derived.enqueue(3)  # wrong
InsertJob.enqueue("a")
InsertJob.enqueue(["a"])  # wrong
assert_type(LateJob.enqueue(3).result(), int)
LateJob.enqueue("3")  # wrong


async def main() -> None:
    await Count.enqueue_async(3)
    await Count.enqueue_async("3")  # wrong
