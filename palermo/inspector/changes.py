"""Changes by an operator to a job's arguments, queue, priority or time."""

from collections.abc import Mapping, Sequence
from typing import Self, TypedDict

from msgspec import Struct
from msgspec.structs import replace

from palermo.contract.serialization import SIGNED, Serializers, media_type
from palermo.core.arguments import preview, unpack
from palermo.core.job_edit import JobEdit, check_priority
from palermo.core.message import Message
from palermo.core.times import Instant, unix_seconds
from palermo.core.topology import check_new_queue
from palermo.errors import DecodeError, MediaTypeUnknown, SerializationError, SignatureInvalid
from palermo.jobs import registry


class Changes(TypedDict, total=False):
    """Changes to a job. Values that are None or missing are not changed."""

    #: All positional arguments.
    args: Sequence[object] | None
    #: All keyword arguments.
    kwargs: Mapping[str, object] | None
    queue: str | None
    priority: int | None
    #: When the job runs: a datetime with a time zone, or Unix seconds.
    at: Instant | None


def check_options(options: Mapping[str, object], kind: type) -> None:
    """Raise TypeError for an option that isn't in this TypedDict."""
    if unknown := options.keys() - kind.__annotations__.keys():
        raise TypeError(f"unknown options {', '.join(sorted(unknown))}; known: {', '.join(kind.__annotations__)}")


class Rewriter(Struct, frozen=True):
    """Makes the same changes to any number of messages.

    Arguments are written with the message's own serializer, or with JSON if that one isn't safe or isn't known here. A
    signed message is signed again. If the job's code is imported here, the arguments must match its signature.
    """

    serializers: Serializers
    args: Sequence[object] | None = None
    kwargs: Mapping[str, object] | None = None
    #: All changes except arguments.
    rest: JobEdit = JobEdit()

    @classmethod
    def of(cls, serializers: Serializers, changes: Changes) -> Self:
        """Return a rewriter for these changes. Raises QueueNameInvalid, OptionInvalid."""
        queue, at = changes.get("queue"), changes.get("at")
        rest = JobEdit(
            queue=None if queue is None else check_new_queue(queue),
            priority=check_priority(changes.get("priority")),
            run_at=None if at is None else unix_seconds(at),
        )
        return cls(serializers, changes.get("args"), changes.get("kwargs"), rest)

    @property
    def rewrites_arguments(self) -> bool:
        return self.args is not None or self.kwargs is not None

    def __call__(self, message: Message) -> Message:
        """Return the changed message, which keeps its id. Raises the same errors as `edit`."""
        return self.edit(message).applied_to(message)

    def edit(self, message: Message) -> JobEdit:
        """Return the changes to this message.

        Raises ArgumentsInvalid, EncodeError, BodyTooLarge, SignatureInvalid if there is no key to sign with, and
        DecodeError if the unchanged arguments can't be read.
        """
        if not self.rewrites_arguments:
            return self.rest
        args, kwargs = self._arguments(message)
        definition = registry.find(message.job)
        if definition is not None:
            definition.bind(args, kwargs)
            args, kwargs = definition.written(args, kwargs)
        encoded = self.serializers.encode(
            args,
            kwargs,
            job=message.signed_job,
            id=message.signed_id,
            serializer=self._serializer(message),
            compression=self._compression(message),
            sign=media_type(message.content_type) == SIGNED,
            one=bool(message.topic) or (definition is not None and definition.one),
        )
        content = replace(
            message,
            body=encoded.body,
            content_type=encoded.content_type,
            content_encoding=encoded.content_encoding,
            arguments=encoded.arguments,
            preview=preview(args, kwargs),
        )
        return replace(self.rest, content=content)

    def _arguments(self, message: Message) -> tuple[Sequence[object], Mapping[str, object]]:
        """Return the new arguments, with those of the message for parts that aren't changed."""
        if self.args is not None and self.kwargs is not None:
            return self.args, self.kwargs
        try:
            # Verify the signature, because the arguments are signed again below.
            current = unpack(
                self.serializers.decode_for_display(message, verify=True), message.arguments, one=bool(message.topic)
            )
        except SignatureInvalid:
            raise
        except SerializationError as error:
            raise DecodeError(
                f"the arguments of job {message.id} ({message.content_type}) cannot be read by this program, so all"
                " of them must be given. Use both --args and --kwargs."
            ) from error
        return (current[0] if self.args is None else self.args, current[1] if self.kwargs is None else self.kwargs)

    def _serializer(self, message: Message) -> str:
        try:
            found = self.serializers.get(self.serializers.written_by(message))
        except SerializationError:
            return "json"
        return found.name if found.safe else "json"

    def _compression(self, message: Message) -> str:
        """Return the message's compression, or none if another client used the property for a charset."""
        try:
            return self.serializers.compression(message.content_encoding).name
        except MediaTypeUnknown:
            return ""
