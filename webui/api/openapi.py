"""The API's description: an OpenAPI document for programs, and a page without scripts for users."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from palermo.webui.api.rows import PROBLEMS
from palermo.webui.render.rendering import origin, page
from palermo.webui.security.sign_in import SignIn
from palermo.webui.threads import Router

router = Router()

#: The ways in which programs authenticate.
_SCHEMES = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "The token in the link that `palermo web` printed, or a token from the users file.",
    },
    "password": {"type": "http", "scheme": "basic", "description": "A name and a password from the users file."},
}


class Operation(NamedTuple):
    """An operation as displayed on the page."""

    #: The kind of object.
    tag: str
    method: str
    path: str
    summary: str
    text: str
    #: Name, location, type, whether it is required, and description.
    parameters: list[tuple[str, str, str, bool, str]]
    #: The name of the body's schema, or "".
    body: str
    #: Statuses other than the common problems, with the names of the answers' schemas.
    answers: list[tuple[str, str]]


@router.get("/openapi.json", name="openapi")
def openapi(request: Request) -> Response:
    """Return the OpenAPI document for this URL."""
    return JSONResponse(described(request.app, request.scope["root_path"]))


@router.get("/docs", name="api_docs")
def docs(request: Request) -> Response:
    """Return the OpenAPI document as a page."""
    found = described(request.app, request.scope["root_path"])
    schemas = {name: list(_fields(schema)) for name, schema in found["components"]["schemas"].items()}
    return page(
        request,
        "api_docs.html",
        operations=list(_operations(found)),
        schemas=schemas,
        problems=PROBLEMS,
        base=origin(request) + request.scope["root_path"],
        sessions_only=sessions_only(request.app),
    )


def sessions_only(app: FastAPI) -> bool:
    """Whether only browsers have access, because users sign in with OpenID and there is no users file."""
    sign_in = app.state.site.existing(SignIn)
    return sign_in is not None and not sign_in.has_passwords


def described(app: FastAPI, root: str) -> dict[str, Any]:
    """Return the OpenAPI document of an application under this root."""
    found = app.openapi()
    schemes = {} if sessions_only(app) else _SCHEMES
    return {
        **found,
        "servers": [{"url": root or "/"}],
        "components": {**found["components"], "securitySchemes": schemes},
        # The empty one because a server may admit all programs of its machine.
        "security": [*({name: []} for name in schemes), {}],
    }


def _operations(document: Mapping[str, Any]) -> Iterator[Operation]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {})
            yield Operation(
                operation["tags"][0],
                method.upper(),
                path,
                operation["summary"],
                operation.get("description", ""),
                [
                    (each["name"], each["in"], _type(each["schema"]), each["required"], each.get("description", ""))
                    for each in operation.get("parameters", ())
                ],
                _type(content["application/json"]["schema"]) if content else "",
                [
                    (status, _type(answer.get("content", {}).get("application/json", {}).get("schema", {})))
                    for status, answer in operation["responses"].items()
                    if int(status) not in PROBLEMS
                ],
            )


def _fields(schema: Mapping[str, Any]) -> Iterator[tuple[str, str, bool, str]]:
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        yield name, _type(field), name in required, field.get("description", "")


def _type(schema: Mapping[str, Any]) -> str:
    """Describe a schema in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(str(value) for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("format") or schema.get("type") or "anything")
