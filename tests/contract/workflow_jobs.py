"""The workflows of the documents, and the jobs that they are made of."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import palermo

#: What ran, in its order; and the jobs that fail.
ran: list[str] = []
failing: Counter[str] = Counter()


def note(text: str) -> None:
    ran.append(text)
    if failing[text]:
        raise ValueError(text)


# 1. a chain
@palermo.job
def charge(order: int) -> str:
    note("charge")
    return f"paid {order}"


@palermo.job
def pack(order: int) -> bytes:
    note("pack")
    return f"box {order}".encode()


@palermo.job
def receipt(order: int, paid: str, packed: bytes) -> str:
    note("receipt")
    return f"{order}: {paid}, {packed!r}"


@palermo.workflow
def checkout(flow: palermo.Workflow, order: int) -> str:
    paid = flow.step(charge, order)
    packed = flow.after(paid).step(pack, order)  # after it, without its result
    return flow.step(receipt, order, paid.output, packed.output).output


# 2. fan out, fan in
@palermo.job
def count_region(region: str) -> int:
    note(f"count {region}")
    return len(region)


@palermo.job
def render(month: str, counts: list[int]) -> str:
    note("render")
    return f"{month}: {counts}"


@palermo.workflow
def report(flow: palermo.Workflow, month: str) -> str:
    parts = flow.map(count_region, ["eu", "us", "asia"])
    return flow.step(render, month, parts.output).output  # list[int], in the order of the items


# 3. many members, streamed; recurring; never two at once
@palermo.job
def resize(path: str) -> None:
    note(path)


@palermo.job
def purge_cdn() -> None:
    note("purge_cdn")


def all_images() -> Iterator[str]:
    return (f"{number}.png" for number in range(1_250))


@palermo.workflow(cron="0 3 * * *", unique="until_done")
def thumbnails(flow: palermo.Workflow) -> None:
    made = flow.map(resize.options(may_fail=100), (path for path in all_images()))
    flow.after(made).step(purge_cdn)  # nobody asks for made.output: nothing is collected


# 4. a DAG with named steps
@palermo.job
def build(tag: str) -> str:
    note("build")
    return f"built {tag}"


@palermo.job
def test(built: str, version: str) -> None:
    note(f"test {built} on {version}")


@palermo.job
def build_docs(tag: str) -> None:
    note("docs")


@palermo.job
def upload(built: str) -> None:
    note(f"upload {built}")


@palermo.workflow
def release(flow: palermo.Workflow, tag: str) -> None:
    built = flow.step(build, tag)
    tests = [flow.step(test.options(id=f"test-{v}"), built.output, v) for v in ("3.11", "3.12")]
    docs = flow.step(build_docs, tag)
    flow.after(*tests, docs).step(upload.options(queue="slow"), built.output)


# 5. compensate, ignore, always, stop quietly
@palermo.job
def book_flight(order: int) -> None:
    note("book_flight")


@palermo.job
def book_hotel(order: int) -> None:
    if failing["no hotel"]:
        raise palermo.Discard("nothing to book")
    note("book_hotel")


@palermo.job
def send_teaser(order: int) -> None:
    note("send_teaser")


@palermo.job
def cancel_flight(order: int) -> None:
    note("cancel_flight")


@palermo.job
def release_seats(order: int) -> None:
    note("release_seats")


@palermo.workflow
def trip(flow: palermo.Workflow, order: int) -> None:
    flight = flow.step(book_flight, order)
    hotel = flow.after(flight).step(book_hotel, order)
    flow.step(send_teaser.options(may_fail=True), order)  # ignored
    flow.after(hotel, when="failed").step(cancel_flight, order)  # hotel failed, or was cancelled, or flight did
    flow.after(flight, hotel, when="over").step(release_seats, order)


# 7. steps that are known only while it runs; nested; over a result
@palermo.job
def list_pages(site: str) -> list[str]:
    return ["/", "/long/page/", "/x"]


@palermo.job
def count_deep(page: str) -> int:
    note(f"deep {page}")
    return 100


@palermo.workflow
def fetch_with_links(flow: palermo.Workflow, page: str) -> int:
    note(f"fetch {page}")  # it is a job: it may work before it adds steps, or instead
    return len(page) if len(page) < 5 else flow.step(count_deep, page).output


@palermo.job
def total(sizes: list[int]) -> int:
    return sum(sizes)


@palermo.workflow
def crawl(flow: palermo.Workflow, site: str) -> int:
    pages = flow.step(list_pages, site)
    sizes = flow.map(fetch_with_links, pages.output)  # a member may be a workflow itself
    return flow.step(total, sizes.output).output


# 8. an event starts it; a person or another event lets it go on
@palermo.job
def ship(order: int, approval: dict[str, Any]) -> None:
    note(f"ship {order} {approval}")


@palermo.job
def remind(order: int) -> None:
    note("remind")


@palermo.subscribe("order.paid", group="fulfilment")
@palermo.workflow
def fulfil(flow: palermo.Workflow, order: dict[str, Any]) -> None:
    checked = flow.signal("approved", timeout=86_400)
    flow.after(checked).step(ship, order["id"], checked.output)
    flow.after(checked, when="failed").step(remind.options(delay=3600), order["id"])  # a timer is a delayed step


# More than the documents show.
@dataclass
class Invoice:
    order: int
    lines: list[str]


@palermo.job(serializer="msgpack")
def invoice(order: int) -> Invoice:
    return Invoice(order, ["a", "b"])


@palermo.job
def mail(invoice: Invoice, also: dict[str, list[Invoice]]) -> str:
    assert isinstance(invoice, Invoice)
    return f"{invoice.order} {also['also'][0].lines}"


@palermo.job
class Greet:
    async def process(self, name: str) -> str:
        return f"hello {name}"


@palermo.workflow
async def values(flow: palermo.Workflow) -> dict[str, str | int | Invoice]:
    made = flow.step(invoice, 3)
    text = flow.step(mail, made.output, {"also": [made.output]})
    greeted = flow.step(Greet, text.output)
    return {"text": greeted.output, "made": made.output, "plain": 1}


@palermo.workflow
def empty(flow: palermo.Workflow) -> list[int]:
    return flow.map(count_region, []).output


@palermo.workflow
def tolerant(flow: palermo.Workflow) -> list[int]:
    return flow.map(count_region.options(may_fail=1), ["eu", "us"]).output


@palermo.workflow
def tolerant_report(flow: palermo.Workflow) -> str:
    paid = flow.step(charge, 1)
    part = flow.after(paid, when="over").step(count_region.options(may_fail=True), "eu")
    return flow.step(render, "May", [part.output]).output


@palermo.workflow(deadline=60)
def brief(flow: palermo.Workflow) -> None:
    paid = flow.step(charge, 1)
    flow.after(paid).step(pack, 1)


@palermo.workflow(deadline=60)
def hurried(flow: palermo.Workflow) -> None:
    waits = flow.signal("never")
    flow.after(waits).step(purge_cdn)


@palermo.job
def make(kilobytes: int) -> str:
    return "x" * 1_000 * kilobytes


@palermo.job
def measure(*parts: list[str] | str) -> int:
    return sum(len(part) if isinstance(part, str) else sum(map(len, part)) for part in parts)


@palermo.workflow
def large(flow: palermo.Workflow, maps: list[int], kilobytes: int) -> int:
    """A step that takes the outputs of these maps, of this size each."""
    made = [flow.map(make, [kilobytes] * members).output for members in maps]
    return flow.step(measure, *made).output


@palermo.workflow(tenant="ada", priority=3)
def inheriting(flow: palermo.Workflow) -> None:
    flow.step(purge_cdn)
    flow.step(resize.options(tenant="bob"), "x.png")


@palermo.workflow
def approve(flow: palermo.Workflow, order: int) -> str:
    checked = flow.signal("approved")
    return flow.after(checked).step(charge, order).output


@palermo.workflow(unique="until_done")
def nightly(flow: palermo.Workflow) -> None:
    flow.step(pack, 1)
    flow.step(receipt, 1, "", b"")


@palermo.workflow
def nested(flow: palermo.Workflow) -> None:
    one = flow.step(approve, 1)
    flow.after(one).step(pack, 1)
    flow.map(approve, [2, 3])
