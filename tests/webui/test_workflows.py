"""Workflows on their pages and in the API: the list, one with its graph, and what an operator does to it."""

from palermo.core.workflow_rules import How, When
from palermo.webui.render.workflow_graph import workflow_picture
from tests.helpers import eventually
from tests.history.written import ended, write
from tests.inspector.workflows import add_order, add_steps, end_step, step
from tests.webui.server import Web, text_of


def test_workflows_are_listed_and_filtered(web: Web) -> None:
    web.client.run(add_order)
    web.client.run(lambda broker: add_steps(broker, step("bill"), id="w2"))
    graph = {"done": 2, "failed": 0, "total": 2, "left_out": 0, "after": {"b": [[["a"], "done"]]}}
    write(web.client, [ended("w0/a", job="shop.a", queue="slow", parent="w0")])
    over = ended("w0", job="shop.over", steps={"a": "done", "b": "done"}, workflow=graph)
    write(web.client, [over, ended("w2", "failed", steps={"bill": "failed"}, workflow={**graph, "failed": 1})])

    rows = eventually(lambda: web.api("workflows")["rows"] if len(web.api("workflows")["rows"]) == 3 else None)
    assert [(row["id"], row["state"], row["done"], row["failed"], row["total"]) for row in rows] == [
        ("w2", "running", 0, 0, 1),
        ("w1", "running", 3, 2, 14),
        ("w0", "done", 2, 0, 2),
    ]
    assert [(step["queue"], step["took"]) for step in web.api("workflows/w0")["steps"]] == [("slow", 0.5), (None, None)]
    assert (rows[1]["waits_for"], rows[1]["jobs"]) == (["approved"], 7)
    assert rows[:2] == [dict(row) for row in web.inspector.workflows.list()[::-1]]
    for asked, found in (("state:done", ["w0"]), ("job:over", ["w0"]), ("w1", ["w1"]), ("state:running", ["w2", "w1"])):
        assert [row["id"] for row in web.api("workflows", filter=asked)["rows"]] == found
        assert f"{len(found)} workflow" in text_of(web.http.get("/workflows", params={"filter": asked}))
    assert "the signal approved; 7 jobs" in text_of(web.http.get("/workflows"))


def test_a_workflow_is_shown_with_its_graph_and_why_steps_wait(web: Web) -> None:
    web.client.run(add_order)

    page = web.http.get("/workflows/w1")
    shown = text_of(page)

    assert page.text.count('<g class="box') == 5
    assert "In queue labels, which no worker serves" in shown
    assert "4 of 10 jobs ended, 1 failed , 0 running, 6 in the queue" in shown
    assert "step pack of w1" in text_of(web.http.get("/jobs/w1%2Fpack"))


def test_a_step_that_adds_steps_has_a_page_of_its_own(web: Web) -> None:
    async def nest(broker: object) -> None:
        await add_steps(broker, step("pay"), step("ship", "pay"))  # type: ignore[arg-type]
        await end_step(broker, "pay", adds=(step("charge"), step("paid", signal=True)))  # type: ignore[arg-type]

    web.client.run(nest)

    found = web.api("workflows/w1")
    (pay, ship) = found["steps"]
    assert (found["waits_for"], found["total"]) == (["paid"], 3)
    assert (pay["kind"], pay["state"], pay["why"]) == ("workflow", "expanded", "0 of 2 steps inside it have ended")
    assert [row["name"] for row in web.api("workflows/w1", inside="pay")["steps"]] == ["pay/charge", "pay/paid"]
    page = web.http.get("/workflows/w1%2Fpay", follow_redirects=True)
    assert page.url.params["inside"] == "pay"
    assert ("charge" in page.text, "Cancel workflow" in page.text) == (True, False)
    assert ship["why"] == "comes after pay"
    assert "that waits for other steps" in web.api("jobs/w1%2Fship/status")["reason"]
    write(web.client, [ended("w2/pay", "expanded", job="shop.pay", parent="w2")])
    shown = eventually(lambda: (page := web.http.get("/jobs/w2%2Fpay")).status_code == 200 and text_of(page))
    assert ("shop.pay running" in shown, "is waiting for the steps that it added" in shown) == (True, True)
    assert "not found" not in shown


def test_a_cancelled_workflow_ends(web: Web) -> None:
    web.client.run(lambda broker: add_steps(broker, step("bill"), step("mail", "bill", when=When.OVER)))
    web.form("/workflows/w1", "/workflows/w1/cancel")
    web.form("/workflows/w1", "/workflows/w1/cancel")
    web.client.run(lambda broker: end_step(broker, "bill", How.CANCELLED))

    (row,) = eventually(lambda: web.api("workflows", state="cancelled")["rows"])
    assert (row["id"], row["ended_at"] is None) == ("w1", False)
    page = eventually(lambda: (found := web.http.get("/workflows/w1")).status_code == 200 and found)
    assert "<dt>Ended</dt>" in page.text


def row(name: str, *after: str) -> dict[str, object]:
    conditions = [{"steps": list(after), "when": "done"}] if after else []
    return {"name": name, "state": "done", "after": conditions, "kind": "job", "total": None}


def test_a_graph_has_layers_by_the_longest_path_and_few_crossings() -> None:
    steps = [row(name) for name in "abc"] + [row("d", "c"), row("e", "b"), row("f", "a"), row("g", "d", "a")]
    picture = workflow_picture(steps)
    assert picture is not None
    left = {node.name: node.x for node in picture.nodes}
    top = {node.name: node.y for node in picture.nodes}

    assert left["a"] == left["c"] < left["d"] == left["f"] < left["g"]
    assert sorted("def", key=top.__getitem__) == sorted(
        "def", key=lambda name: top[{"d": "c", "e": "b", "f": "a"}[name]]
    )
    assert workflow_picture([row(str(number)) for number in range(301)]) is None
