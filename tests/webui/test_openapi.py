"""The API keeps to its own description, whatever it is asked: no 5xx, no status that is not documented."""

from functools import cache
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance
from schemathesis.specs.openapi.schemas import OpenApiSchema

from palermo.settings.settings import Settings
from palermo.webui import create_app
from palermo.webui.api.rows import PROBLEMS
from tests.helpers import HANGS
from tests.scale import scaled
from tests.webui.server import Web

#: Refused for its length before anybody looks at what is wrong with it; schemathesis does not take them for refusals.
TOO_LONG = {413, 414}


@pytest.fixture
def web(shared_web: Web) -> Web:
    """One server for the module."""
    return shared_web


@cache
def described() -> dict[str, Any]:
    return create_app(settings=Settings(url="sqlite:///:memory:")).openapi()


@cache
def schema_of(url: str) -> OpenApiSchema:
    """What schemathesis reads from the pages there, once for all tests of the module."""
    return schemathesis.openapi.from_url(f"{url}/api/openapi.json", timeout=HANGS)


def operations(*, choosy: bool = False) -> list[tuple[str, str]]:
    """Every method of every path; or only those that take more than a name, and so something wrong."""
    document = described()
    found = [(method, path) for path, methods in document["paths"].items() for method in methods]
    return [each for each in found if not choosy or is_choosy(document["paths"][each[1]][each[0]])]


def is_choosy(operation: dict[str, Any]) -> bool:
    queries = [each["schema"] for each in operation.get("parameters", ()) if each["in"] == "query"]
    return "requestBody" in operation or any(schema.get("type") in ("integer", "boolean") for schema in queries)


def ask(web: Web, method: str, path: str, mode: GenerationMode) -> None:
    web.client.enqueue("shop.mail", ["a@b.c"], {"subject": "hi"}, queue="mail", id="job-1")

    @given(case=schema_of(web.url)[path][method.upper()].as_strategy(generation_mode=mode))
    @settings(max_examples=scaled(4, 25), deadline=None, suppress_health_check=list(HealthCheck), database=None)
    def each(case: Any) -> None:
        # Not every rule for names can be said in a schema, such as how many bytes they may have.
        excluded = [positive_data_acceptance]
        response = case.call(timeout=60)
        if response.status_code in TOO_LONG:
            excluded.append(negative_data_rejection)
        case.validate_response(response, excluded_checks=excluded)

    each()


@pytest.mark.parametrize(("method", "path"), operations())
def test_what_is_documented_is_what_happens(served: Web, method: str, path: str) -> None:
    ask(served, method, path, GenerationMode.POSITIVE)


@pytest.mark.parametrize(("method", "path"), operations(choosy=True))
def test_what_the_description_does_not_allow_is_refused_as_documented(web: Web, method: str, path: str) -> None:
    ask(web, method, path, GenerationMode.NEGATIVE)


def test_every_problem_of_every_operation_is_an_error_in_words(web: Web) -> None:
    document = web.http.get("/api/openapi.json").json()

    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for status in PROBLEMS:
                said = operation["responses"][str(status)]["content"]["application/json"]["schema"]["$ref"]
                assert said == "#/components/schemas/Problem", (method, path, status)
    assert "HTTPValidationError" not in document["components"]["schemas"]


def test_the_document_is_a_page_too_and_needs_nothing_from_elsewhere(web: Web) -> None:
    page = web.http.get("/api/docs").text

    for path in web.http.get("/api/openapi.json").json()["paths"]:
        assert path in page
    assert "src=" not in page.replace('src="/static/', "")
