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


@cache
def described() -> dict[str, Any]:
    return create_app(settings=Settings(url="sqlite:///:memory:")).openapi()


@cache
def schema_of(url: str) -> OpenApiSchema:
    """What schemathesis reads from the pages there, once for all tests of the module."""
    return schemathesis.openapi.from_url(f"{url}/api/openapi.json", timeout=HANGS)


def operations() -> list[tuple[str, str, GenerationMode]]:
    """Every method of every path with what it allows; and with what it does not, where it takes more than a name."""
    found = []
    for path, methods in described()["paths"].items():
        for method, operation in methods.items():
            found.append((method, path, GenerationMode.POSITIVE))
            if is_choosy(operation):
                found.append((method, path, GenerationMode.NEGATIVE))
    return found


def is_choosy(operation: dict[str, Any]) -> bool:
    queries = [each["schema"] for each in operation.get("parameters", ()) if each["in"] == "query"]
    return "requestBody" in operation or any(schema.get("type") in ("integer", "boolean") for schema in queries)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path", "mode"), operations())
def test_what_is_documented_is_what_happens(served: Web, method: str, path: str, mode: GenerationMode) -> None:
    served.client.enqueue("shop.mail", ["a@b.c"], {"subject": "hi"}, queue="mail", id="job-1")

    @given(case=schema_of(served.url)[path][method.upper()].as_strategy(generation_mode=mode))
    @settings(max_examples=scaled(4, 25), deadline=None, suppress_health_check=list(HealthCheck), database=None)
    def each(case: Any) -> None:
        # Not every rule for names can be said in a schema, such as how many bytes they may have.
        excluded = [positive_data_acceptance]
        response = case.call(timeout=60)
        if response.status_code in TOO_LONG:
            excluded.append(negative_data_rejection)
        case.validate_response(response, excluded_checks=excluded)

    each()


def test_every_problem_of_every_operation_is_an_error_in_words(served: Web) -> None:
    document = served.http.get("/api/openapi.json").json()

    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for status in PROBLEMS:
                said = operation["responses"][str(status)]["content"]["application/json"]["schema"]["$ref"]
                assert said == "#/components/schemas/Problem", (method, path, status)
    assert "HTTPValidationError" not in document["components"]["schemas"]


def test_the_document_is_a_page_too_and_needs_nothing_from_elsewhere(served: Web) -> None:
    page = served.http.get("/api/docs").text
    document = served.http.get("/api/openapi.json").json()

    for path in document["paths"]:
        assert path in page
    assert page.count("-H 'Authorization: Bearer TOKEN'") == page.count("curl http") == 2
    assert document["security"] == [*({name: []} for name in document["components"]["securitySchemes"]), {}]
    assert "src=" not in page.replace('src="/static/', "")
