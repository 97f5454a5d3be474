"""Steps of a workflow: the headers of their jobs, and the steps that a run adds, as bytes."""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from palermo.core.header_json import dumps, message_with
from palermo.core.message import Headers, Message, to_headers
from palermo.core.step_values import Use, Value
from palermo.core.topology import MAX_ID_BYTES
from palermo.core.workflow_rules import Plan
from palermo.errors import OptionInvalid

#: The headers of a step: the workflow's id, the step's path, its generation, and whether its output is needed.
WORKFLOW, PATH, GENERATION, OUTPUT = "workflow", "workflow-step", "workflow-generation", "workflow-output"

#: Maximum size in bytes of the steps that one run adds, and of a step's job with the outputs that it uses. In base64
#: and with a megabyte of other data it fits into RabbitMQ 4's message size of 16 MiB.
MAX_ADDED = 10 * 1024 * 1024

#: Maximum length of a step's name in bytes.
MAX_STEP_NAME = 100

#: Number of members whose arguments are stored together.
PORTION = 200


class Member(Struct, frozen=True, array_like=True):
    """The arguments of a map's member, and the headers in which it differs from the map's job."""

    body: bytes
    headers: str = ""


class StepJob(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The job of a step or of a map's members, before its release."""

    content_type: str
    content_encoding: str
    headers: str
    properties: str = ""
    body: bytes = b""
    #: Delay in seconds after its release.
    delay: float | None = None
    expires: float | None = None
    mark: str = ""
    uses: tuple[Use, ...] = ()
    #: Whether its output is needed.
    output: bool = False

    @classmethod
    def of(cls, message: Message, **fields: Any) -> "StepJob":
        """The step of a job."""
        headers = to_headers(message)
        return cls(
            content_type=message.content_type,
            content_encoding=message.content_encoding,
            headers=dumps({name: value for name, value in headers.items() if name != "id"}),
            properties=dumps(message.properties) if message.properties else "",
            body=message.body,
            **fields,
        )

    def message(self, id: str, step: Headers, now: float, *, member: Member | None = None) -> Message:
        """The job as released now, with the headers of its step."""
        found = message_with(
            self.headers,
            self.properties,
            message_id=id,
            content_type=self.content_type,
            content_encoding=self.content_encoding,
            body=self.body if member is None else member.body,
            taken_from=None,
            new_id=lambda: id,
        )
        if member is not None and member.headers:
            own = message_with(
                member.headers,
                "",
                message_id=id,
                content_type="",
                content_encoding="",
                body=b"",
                taken_from=None,
                new_id=lambda: id,
            )
            found = replace(found, tenant=own.tenant, extra={**found.extra, **own.extra})
        run_at = now + self.delay if self.delay else None
        return replace(
            found,
            created_at=int(now),
            queued_at=now,
            run_at=run_at,
            expires_at=None if self.expires is None else (run_at or now) + self.expires,
            extra={**found.extra, **step},
        )


class AddedStep(Struct, frozen=True, array_like=True):
    """A step that a run adds. A signal has no job; only a map has members."""

    plan: Plan
    job: StepJob | None = None
    members: tuple[Member, ...] = ()


class Graph(Struct, frozen=True, array_like=True):
    """The steps that a run adds, and its return value."""

    steps: tuple[AddedStep, ...]
    result: Value | None = None
    #: Seconds after which the workflow is cancelled and fails.
    deadline: float | None = None


def step_headers(workflow: str, path: str, generation: int, *, output: bool) -> dict[str, Any]:
    """The headers of a step's job."""
    wanted = {OUTPUT: True} if output else {}
    return {WORKFLOW: workflow, PATH: path, GENERATION: generation, **wanted}


def check_step_name(name: object) -> None:
    """Raise OptionInvalid unless a step may have this name. A step that waits for a signal has the signal's name."""
    if (
        not isinstance(name, str)
        or not name.isprintable()
        or "/" in name
        or ":" in name
        or not 0 < len(name.encode()) <= MAX_STEP_NAME
    ):
        raise OptionInvalid(
            f"the id of a step or signal, {name!r:.120}, must be 1 to {MAX_STEP_NAME} bytes of printable text without"
            " '/' or ':'."
        )


def step_of(headers: Headers) -> tuple[str, str, int] | None:
    """The workflow, path and generation of a step's job; None for any other job."""
    match headers.get(WORKFLOW), headers.get(PATH), headers.get(GENERATION, 0):
        case str(workflow), str(path), int(generation):
            return workflow, path, generation
    return None


def step_id(workflow: str, path: str) -> str:
    """The id of a step's job: the same in each run."""
    id = f"{workflow}/{path}"
    if len(id.encode()) <= MAX_ID_BYTES:
        return id
    import hashlib

    id = f"{hashlib.sha256(workflow.encode()).hexdigest()}/{path}"
    if len(id.encode()) > MAX_ID_BYTES:
        id = hashlib.sha256(f"{workflow}/{path}".encode()).hexdigest()
    return id


def workflows_above(id: str) -> Iterator[tuple[str, str]]:
    """The ids of workflows that a job may be a step of according to its own id, each with the step's path."""
    parts = id.split("/")
    yield from (("/".join(parts[:n]), "/".join(parts[n:])) for n in range(len(parts) - 1, 0, -1))
