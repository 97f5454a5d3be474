"""Gives a failed job other arguments: writes its body anew, and leaves everything else as it was."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from palermo.contract.serialization import SIGNED, Serializers, media_type
from palermo.core.arguments import preview, unpack
from palermo.core.message import Message
from palermo.errors import DecodeError, MediaTypeUnknown, SerializationError, SignatureInvalid

if TYPE_CHECKING:
    from palermo.jobs.definition import JobDefinition


@dataclass(frozen=True, slots=True)
class ReplaceArguments:
    """Writes other arguments into a message, with the serializer that wrote it.

    If that one is not safe, or not known here, JSON is used; a signed message is signed again.
    None for `args` or `kwargs` leaves that half as it is.
    """

    serializers: Serializers
    args: Sequence[object] | None
    kwargs: Mapping[str, object] | None
    #: Finds the declaration of a job by its name, if its code is imported here: the arguments must fit it.
    find: "Callable[[str], JobDefinition | None]"

    def __call__(self, message: Message) -> Message:
        """The message with the other arguments: same id, same headers, new preview.

        Raises ArgumentsInvalid, EncodeError, BodyTooLarge, SignatureInvalid if there is no key to
        sign with, and DecodeError if the half that stays cannot be read.
        """
        args, kwargs = self._merged(message)
        definition = self.find(message.job)
        one: dict[str, Any] = {}
        if definition is not None:
            definition.bind(args, kwargs)
        if message.topic or (definition is not None and definition.one):
            one["one"] = True
        encoded = self.serializers.encode(
            args,
            kwargs,
            job=message.signed_job,
            id=message.signed_id,
            serializer=self._serializer(message),
            compression=self._compression(message),
            sign=media_type(message.content_type) == SIGNED,
            **one,
        )
        return replace(
            message,
            body=encoded.body,
            content_type=encoded.content_type,
            content_encoding=encoded.content_encoding,
            arguments=encoded.arguments,
            preview=preview(args, kwargs),
        )

    def _merged(self, message: Message) -> tuple[Sequence[object], Mapping[str, object]]:
        if self.args is not None and self.kwargs is not None:
            return self.args, self.kwargs
        try:
            # Verified: only what someone with the key wrote may be signed anew below, not what was slipped in.
            there = unpack(
                self.serializers.decode_for_display(message, verify=True), message.arguments, one=bool(message.topic)
            )
        except SignatureInvalid:
            raise
        except SerializationError as error:
            raise DecodeError(
                f"the arguments of job {message.id} ({message.content_type}) cannot be read here, so no half of them"
                " can be kept. Give both the positional and the named ones: --args and --kwargs."
            ) from error
        return (there[0] if self.args is None else self.args, there[1] if self.kwargs is None else self.kwargs)

    def _serializer(self, message: Message) -> str:
        try:
            found = self.serializers.get(self.serializers.written_by(message))
        except SerializationError:
            return "json"
        return found.name if found.safe else "json"

    def _compression(self, message: Message) -> str:
        """The message's compression; none if another client wrote a charset into that property."""
        try:
            return self.serializers.compression(message.content_encoding).name
        except MediaTypeUnknown:
            return ""
