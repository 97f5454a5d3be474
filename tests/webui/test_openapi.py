"""The API keeps to its own description, whatever it is asked: no 5xx, no status that is not documented."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from palermo.webui.api.rows import PROBLEMS
from tests.helpers import HANGS
from tests.scale import scaled
from tests.webui.server import Web

#: Refused for its length before anybody looks at what is wrong with it; schemathesis does not take them for refusals.
TOO_LONG = {413, 414}


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """Every method of every path with what it allows; and with what it does not, where it takes more than a name."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method, path, True
            if is_choosy(operation):
                yield method, path, False


def is_choosy(operation: dict[str, Any]) -> bool:
    queries = [each["schema"] for each in operation.get("parameters", ()) if each["in"] == "query"]
    return "requestBody" in operation or any(schema.get("type") in ("integer", "boolean") for schema in queries)


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_what_is_documented_is_what_happens(served: Web) -> None:
    # Imported late: that takes two seconds of the processor, in each process that collects the tests.
    import schemathesis
    from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

    address = f"{served.url}/api/openapi.json"
    schema = schemathesis.openapi.from_url(address, timeout=HANGS)
    failed: list[Exception] = []

    for method, path, allowed in operations(served.http.get(address).json()):
        mode = schemathesis.GenerationMode.POSITIVE if allowed else schemathesis.GenerationMode.NEGATIVE

        @given(case=schema[path][method.upper()].as_strategy(generation_mode=mode))
        @settings(max_examples=scaled(4, 25), deadline=None, suppress_health_check=list(HealthCheck), database=None)
        def each(case: Any) -> None:
            # Not every rule for names can be said in a schema, such as how many bytes they may have.
            excluded = [positive_data_acceptance]
            response = case.call(timeout=60)
            if response.status_code in TOO_LONG:
                excluded.append(negative_data_rejection)
            case.validate_response(response, excluded_checks=excluded)

        served.client.enqueue("shop.mail", ["a@b.c"], {"subject": "hi"}, queue="mail", id="job-1")
        try:
            each()
        except Exception as error:
            error.add_note(f"{method} {path}, {mode}")
            failed.append(error)

    if failed:
        raise ExceptionGroup("what happens is not what is documented", failed)


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
