"""Other arguments for a job that has failed: its body written anew, everything else as it was."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from palermo.core.arguments import unpack
from palermo.core.message import Message
from palermo.core.preview import preview
from palermo.core.values import dataclass
from palermo.errors import DecodeError, MediaTypeUnknown, SerializationError, SignatureInvalid
from palermo.serialization import SIGNED, Serializers, media_type

if TYPE_CHECKING:
    from palermo.registry import JobDefinition


@dataclass(frozen=True, slots=True)
class Rewriting:
    """Writes other arguments into a message, in the serializer it came in.

    Where that one is not safe, or not known here, JSON; a signed message is signed again.
    None for `args` or `kwargs` leaves that half as it is.
    """

    serializers: Serializers
    args: Sequence[object] | None
    kwargs: Mapping[str, object] | None
    #: The declaration of a job by its name, where its code is here: the arguments must fit it.
    find: "Callable[[str], JobDefinition | None]"

    def __call__(self, message: Message) -> Message:
        """The message with the other arguments; same id, same headers, preview made anew.

        Raises ArgumentsInvalid, EncodeError, BodyTooLarge, SignatureInvalid without a key to
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
            # Verified: what is signed anew below is what someone with the key wrote, not what was slipped in.
            there = unpack(self.serializers.look(message, verify=True), message.arguments, one=bool(message.topic))
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
        """Its compression; none where other clients wrote a charset into that property."""
        try:
            return self.serializers.compression(message.content_encoding).name
        except MediaTypeUnknown:
            return ""
