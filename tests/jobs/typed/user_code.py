"""A user's program: mypy --strict and pyright's strict mode find the lines that end in `# wrong`, and no other.

Class jobs derive from palermo.JobClass, so mypy needs no plugin. Checked by test_typing.py.
"""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

import palermo


@dataclass
class Report:
    pages: int
    skipped: list[int]


@palermo.job(queue="mail", retries=5, backoff="exponential", retry_on=ConnectionError, timeout=timedelta(minutes=5))
class SendMail(palermo.JobClass):
    def process(self, to: str, *, subject: str = "hi") -> str:
        return f"{to}: {subject}"

    def before_process(self, to: str, *, subject: str = "hi") -> bool:
        return "@" in to


@palermo.job
class Fetch(palermo.JobClass):
    async def process(self, url: str) -> bytes:
        return url.encode()


@palermo.job(keep_result=True, unique="until_done", on_duplicate="return", limit=3, rate="100/min")
def report(pages: int, pause: float = 0.1) -> Report:
    if (job := palermo.current_job()) is not None:
        job.progress(0.5, "half")
        job.log(f"attempt {job.attempt} parent {job.parent}")
    if pages == 0:
        raise palermo.Snooze(60)
    return Report(pages, [page for page in palermo.track(range(pages)) if page % 7 == 0])


@palermo.job(cron="0 3 * * *", missed="once", tenant=lambda *_args, **_kwargs: "one")
async def clean_up() -> int:
    return 0


@palermo.job(batch=50, batch_wait=timedelta(milliseconds=200), retries=3, tenant="one")
def store(rows: palermo.Batch[Report]) -> int:
    for index, row in enumerate(rows):
        if row.pages:
            rows.done(index)
    return len(rows)


@palermo.job(batch=50)
async def count(numbers: list[int]) -> None:
    assert_type(sum(numbers), int)


@palermo.subscribe("order.*", group="mail")
def confirm(order: dict[str, str]) -> None: ...


@palermo.hook
def on_failure(error: BaseException, *args: object, **kwargs: object) -> None: ...


def enqueue() -> None:
    made = report.enqueue(20)
    assert_type(made, palermo.Job[Report])
    assert_type(made.result(timeout=60), Report)
    assert_type(made.result().skipped, list[int])
    assert_type(made.id, str)
    assert_type(report(20), Report)
    report.enqueue("20")  # wrong
    report.enqueue(20, colour="red")  # wrong
    report.options(queue="slow", priority=9, delay=timedelta(minutes=5)).enqueue(20, pause=0.5)
    report.options(colour="red")  # wrong
    report.options(on_duplicate="never")  # wrong
    report.enqueue_at(datetime(2030, 5, 1, tzinfo=UTC), pages=20)
    assert_type(report.enqueue_many([(1,), {"pages": 2}]), list[palermo.Job[Report]])

    assert_type(store.enqueue(Report(1, [])), palermo.Job[None])
    store.enqueue(20)  # wrong
    store.enqueue([Report(1, [])])  # wrong
    store.options(priority=9).enqueue(Report(1, []))
    store.options(priority=9).enqueue("1")  # wrong
    assert_type(store(palermo.Batch([Report(1, [])])), int)
    store([Report(1, [])])  # wrong
    count.enqueue_in(timedelta(hours=1), 1)
    count.enqueue("1")  # wrong
    palermo.job(batch=50, keep_result=True)  # wrong
    palermo.job(batch=50, unique="until_done")  # wrong

    assert_type(SendMail.enqueue("ann@example.com", subject="your order").result(), str)
    SendMail.enqueue("ann@example.com", "your order")  # wrong
    SendMail.options(id="order-7", retries=3).enqueue(7)  # wrong
    assert_type(Fetch.enqueue("https://example.com").result(), bytes)
    assert_type(clean_up.enqueue().result(), int)


async def enqueue_async() -> None:
    made = await report.enqueue_async(20)
    assert_type(made, palermo.Job[Report])
    assert_type(await made.result_async(), Report)
    assert_type(await store.enqueue_async(Report(1, [])), palermo.Job[None])
    await store.enqueue_async(1)  # wrong
    await count([1])
    await report.enqueue_async()  # wrong


def handles() -> None:
    job = clean_up.enqueue()
    wide: palermo.Job[float] = job
    narrow: palermo.Job[str] = job  # wrong
    print(wide, narrow, job.wait(timeout=3) == "done")
    assert_type(palermo.job_by_id("1"), palermo.Job[Any])
    assert_type(palermo.enqueue("shop.tasks.resize").result(), Any)
    assert_type(report.dequeue(20), int)
    assert_type(report.enqueue_in(3, 20).result(), Report)
    assert_type(report.options(delay=3).enqueue(20).result(timeout=3), Report)
    assert_type(SendMail.options(delay=3).enqueue("a").result(), str)
    report.enqueue_many("ab")  # wrong
    report.options(queue=3)  # wrong
    report.options(retries="3")  # wrong
    report.options(keep_result="yes")  # wrong
    report.options(unique="until_dome")  # wrong
    report.options(unique=60.0, on_duplicate="rerun")
    palermo.job(backoff="exponentially")  # wrong
    palermo.job(missed="never")  # wrong
    palermo.job(backoff="exponential", missed="once", arguments="one", unique="until_start")
    palermo.start_worker(["shop"], pool="threads")  # wrong
    palermo.start_worker(["shop"], pool="thread", prefetch=4, log_format="json")
    if (current := palermo.current_job()) is not None:
        current.progress("half")  # wrong


@report.hook
def after_enqueue(pages: int, pause: float = 0.1) -> None: ...


assert_type(after_enqueue(1), None)


def connect() -> None:
    palermo.connect("sqlite:///jobs.db", publish_timeout=timedelta(seconds=3), queue_type="quorum", imports=["shop"])
    palermo.connect(exchange="shop", publish_timeout="5m", failed_max_count="none", sign=None)
    palermo.connect(exchnge="shop")  # wrong
    palermo.connect(queue_type="quorumm")  # wrong
    palermo.connect(web_port="3000")  # wrong
    palermo.start_worker(["shop.tasks"], max_deaths="3")  # wrong
    palermo.Settings.load(url=3)  # wrong


def busiest(queues: list[palermo.QueueRow]) -> str:
    return max(queues, key=lambda row: row["pending"])["name"]


def look() -> None:
    inspector = palermo.inspector()
    for failed in inspector.failed.list(limit=10):
        assert_type(failed["id"], str)
        assert_type(failed["args"], list[Any] | None)
        if failed["error"] is not None:
            assert_type(failed["error"]["message"], str)
            print(failed["error"]["mesage"])  # wrong
        print(failed["faild_at"])  # wrong
    print(inspector.queues.list()[0]["pendng"])  # wrong
    print(inspector.jobs.list("mail")[0]["created"])  # wrong
    print(inspector.scheduled.list()[0]["runs_at"])  # wrong
    for worker in inspector.workers.list():
        print(worker["jobs"][0]["job_id"])  # wrong
        print(worker["host"], worker["hostname"])  # wrong
    print(inspector.workers.show("pid:1@here")["memory"], busiest(inspector.queues.list()))


@palermo.job
def charge(order: int) -> str:
    return f"paid {order}"


@palermo.job
def pack(order: int, paid: str, *, fragile: bool = False) -> bytes:
    return paid.encode()


@palermo.job
async def weigh(box: str) -> float:
    return float(len(box))


@palermo.workflow
def boxes(flow: palermo.Workflow, names: list[str]) -> list[float]:
    return flow.map(weigh, names).output


@palermo.workflow(cron="0 3 * * *", deadline=timedelta(hours=1))
def checkout(flow: palermo.Workflow, order: int) -> bytes:
    paid = flow.step(charge, order)
    assert_type(paid, palermo.Step[str])
    packed = flow.after(paid, when="over").step(pack.options(id="pack-eu", may_fail=True), order, paid.output)
    flow.step(pack, order, paid)  # wrong
    flow.step(pack, order, packed.output)  # wrong
    flow.step(pack, order, paid.output, fragil=True)  # wrong
    flow.map(charge, ["a"])  # wrong
    sent = flow.step(SendMail, "a@b.c", subject="boxes")
    assert_type(sent.output, str)
    inner = flow.step(boxes, ["a"])
    assert_type(inner.output, list[float])
    assert_type(flow.map(pack, [1, 2], paid.output).output, list[bytes])
    assert_type(flow.signal("approved", timeout=60).output, Any)
    assert_type(flow.step("other.job", 1), palermo.Step[Any])
    flow.after(packed, when="sometimes").step(charge, 1)  # wrong
    return packed.output


assert_type(checkout.enqueue(17), palermo.Job[bytes])
checkout.enqueue("17")  # wrong
checkout(palermo.Workflow(), 17)
made = palermo.Workflow()
made.step(charge, 1)
assert_type(made.enqueue(), palermo.Job[None])
palermo.job_by_id("7").signal("approved", {"by": "ann"})


def pages(token: str | None) -> Iterator[Report]:
    yield Report(1, [])


async def pages_async(token: str | None) -> AsyncIterator[Report]:
    yield Report(1, [])


@palermo.job
async def import_all(paths: list[str]) -> None:
    for page in palermo.resume(pages, key=lambda page: page.pages, total=7):
        assert_type(page, Report)
    for page in palermo.resume(lambda last: pages(last), key=lambda page: page.pages, name="again"):
        print(page.pages, page.page)  # wrong
    async for page in palermo.resume(pages_async, key=lambda page: page.pages):
        assert_type(page, Report)
    async for _ in palermo.resume(pages, key=lambda page: page.pages):  # wrong
        pass
    for path in palermo.resume(paths, name="copy"):
        assert_type(path, str)
    for _ in palermo.resume(paths, key=lambda path: path):  # wrong
        pass
    for _ in palermo.resume(pages):  # wrong
        pass
    if (job := palermo.current_job()) is not None:
        job.save({"phase": "report"})
        assert_type(job.saved, Any)
