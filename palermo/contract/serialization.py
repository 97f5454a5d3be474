"""Convert values to bytes and back: the contract for serializers, and the registry that finds them by media type.

A body is serialized, signed and compressed, in this order. docs/internals/wire.md is the law: reading a message runs no
untrusted code, decoding imports nothing, and a value is restored exactly or not at all.
"""

import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from palermo.contract.class_hints import dotted_name
from palermo.contract.plugins import Plugin, installed, own
from palermo.contract.serializer_shape import check_compression, check_serializer
from palermo.core.arguments import pack, single
from palermo.core.message import MAX_BODY, Message
from palermo.core.step_values import STEP, Value, loaded, unpack
from palermo.core.topics import OCTETS, is_untyped, with_media_type
from palermo.errors import (
    BodyTooLarge,
    DecodeError,
    EncodeError,
    MediaTypeRefused,
    MediaTypeUnknown,
    OptionInvalid,
    ResultRefused,
    SignatureInvalid,
)


class Unrestored(Struct, frozen=True):
    """A dataclass or enum value decoded only for display, so that its class isn't needed. Also used for a large set.

    Serializing it writes the original value, so that displayed arguments can be changed in part and sent again.
    """

    #: "dataclass" or "enum"; "set", "frozenset" or "dict" for one that is expensive to build.
    kind: str
    #: The dotted name of the class; "" for a set or dict.
    name: str
    #: A dataclass's fields by name; the name of an enum's member (a Flag's number); a list of members, or of pairs.
    value: object

    def __repr__(self) -> str:
        if isinstance(self.value, list) and not self.name:
            return f"<{self.kind} of {len(self.value)}>"
        if isinstance(self.value, dict):
            return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.value.items())})"
        return f"{self.name}.{self.value}"


#: As `classes` of `Serializer.loads` it returns dataclasses and enums as Unrestored.
FOR_DISPLAY: Mapping[str, type] = MappingProxyType({})

NO_CLASSES: Mapping[str, type] = MappingProxyType({})


C = TypeVar("C", bound=type)

SIGNED = "application/x-palermo-signed"

#: Maximum size of a decompressed body, in bytes.
MAX_DECOMPRESSED = 64_000_000

#: Imported by name, since the contract doesn't import adapters.
_SIGNED_WRAPPER = "palermo.serializers.signed:Signed"

#: Values of content_encoding that other clients use without compression: kombu and Spring write the charset.
_NO_COMPRESSION = frozenset({"", "identity", "utf-8", "utf8", "us-ascii", "ascii", "binary", "8bit"})


#: Reads a step's own value; None to read it like the outputs.
Own = Callable[[Value], object] | None


class Encoded(NamedTuple):
    """A job's arguments as fields of a Message."""

    content_type: str
    content_encoding: str
    body: bytes
    #: "" or "both", see core/arguments.py.
    arguments: str


class Serializer(Protocol):
    """A way to write values as bytes. Stateless and thread-safe. All members are required."""

    #: One word in lower case, as in `serializer="json"` and `--accept pickle`.
    name: str
    #: As in the property content_type: lower case, without parameters.
    media_type: str
    #: True if `loads` runs nothing that the bytes choose, as with JSON; False if it may, as with pickle. A worker
    #: accepts jobs of an unsafe one only with `--accept NAME`, and its arguments are never decoded for display.
    safe: bool

    def dumps(self, value: object) -> bytes:
        """The value as bytes; it is a result of `core.arguments.pack`.

        Raises EncodeError, whose text starts with the path of the value that can't be written, such as
        ``args[0]["when"]``.
        """
        ...

    def loads(self, data: bytes, classes: Mapping[str, type]) -> object:
        """The value in the bytes; dataclasses and enums only of `classes`, by dotted name. Raises DecodeError.

        With FOR_DISPLAY as `classes`, dataclasses and enums are returned as Unrestored.
        """
        ...


class Compression(Protocol):
    """A compression method."""

    #: As in the property content_encoding.
    name: str

    def compress(self, data: bytes) -> bytes: ...

    def decompress(self, data: bytes, limit: int) -> bytes:
        """The original bytes. Raises BodyTooLarge before they grow above `limit`, DecodeError if they are damaged."""
        ...


class Signing(Protocol):
    """The wrapper that authenticates the writer of a body: palermo/serializers/signed.py."""

    def wrap(self, body: bytes, *, content_type: str, job: str, id: str) -> bytes: ...

    def unwrap(self, body: bytes, *, job: str, id: str) -> tuple[str, bytes]:
        """The inner media type and body. Raises SignatureInvalid, DecodeError."""
        ...

    def unwrap_unverified(self, body: bytes) -> tuple[str, bytes]:
        """The inner media type and body without verification, only for display. Raises DecodeError."""
        ...


class Accept(Struct, frozen=True, kw_only=True):
    """The serializers that a worker decodes, by name or media type.

    "signed" is a requirement rather than a format: ``only("signed")`` refuses unsigned messages. The body inside a
    signature must be accepted too.
    """

    #: None for every safe serializer.
    named: frozenset[str] | None = None
    #: Accepted in addition.
    besides: frozenset[str] = frozenset()
    #: Whether unsigned messages are refused.
    signed_only: bool = False

    @classmethod
    def default(cls) -> "Accept":
        """Accept every safe serializer, signed or not."""
        return cls()

    @classmethod
    def only(cls, *names: str) -> "Accept":
        """Accept only these.

        If "signed" is among them, every message must be signed, and the others are for the body inside.
        ``only("signed")`` allows any safe serializer, ``only("signed", "pickle")`` only pickle.
        """
        wanted = frozenset(media_type(name) for name in names)
        inner = wanted - {"signed", SIGNED}
        return cls(named=inner or (None if wanted else inner), signed_only=inner != wanted)

    def also(self, *names: str) -> "Accept":
        """Accept these in addition."""
        return replace(self, besides=self.besides | {media_type(name) for name in names} - {"signed", SIGNED})

    def permits(self, serializer: Serializer) -> bool:
        """Whether a body of this serializer may be decoded."""
        if serializer.safe and self.named is None:
            return True
        names = {serializer.name, serializer.media_type}
        if names & self.besides:
            return True
        return serializer.safe if self.named is None else bool(names & self.named)

    @property
    def names(self) -> frozenset[str]:
        """The given names and media types, for `Serializers.check`."""
        return (self.named or frozenset()) | self.besides


class _Formats(Struct):
    """Registered formats. A change replaces a whole dict, so that other threads can read it at any time."""

    #: By name and by media type.
    serializers: dict[str, Serializer] = field(default_factory=dict)
    compressions: dict[str, Compression] = field(default_factory=dict)
    classes: dict[str, type] = field(default_factory=dict)
    #: Whether built-in formats must still be loaded.
    undiscovered: bool = False
    #: Whether other installed formats must still be loaded.
    unsearched: bool = False
    broken: list[str] = field(default_factory=list)


#: Shared by all `Serializers.of_process`.
_OF_PROCESS = _Formats(undiscovered=True, unsearched=True)


class Serializers:
    """The serializers and compressions of a process. Callers can add and remove some at run time."""

    def __init__(self, *, signing_keys: Sequence[str | bytes] = (), formats: _Formats | None = None) -> None:
        """Start empty; see `default`. Signed bodies are verified with any of the keys, and signed with the first.

        Raises SettingInvalid for a key under 16 bytes.
        """
        self._keys = tuple(signing_keys)
        self._signing: Signing | None = self._wrapper() if signing_keys else None
        self._formats = formats or _Formats()

    @classmethod
    def default(cls, *, signing_keys: Sequence[str | bytes] = ()) -> "Serializers":
        """A registry with all installed formats, by the entry points palermo.serializers and palermo.compressions."""
        return cls(signing_keys=signing_keys, formats=_Formats(undiscovered=True, unsearched=True))

    @classmethod
    def of_process(cls, *, signing_keys: Sequence[str | bytes] = ()) -> "Serializers":
        """A registry of all installed formats and those registered anywhere in this process.

        Only the signing keys are its own.
        """
        return cls(signing_keys=signing_keys, formats=_OF_PROCESS)

    def encode(
        self,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        *,
        job: str,
        id: str,
        serializer: str = "json",
        compression: str = "",
        sign: bool = False,
        one: bool = False,
    ) -> Encoded:
        """The arguments of a call, ready for the wire.

        `one` is for jobs declared with arguments="one", whose body is their single argument.

        Raises EncodeError with the path of the value that can't be written, BodyTooLarge above 16 MiB (64 MB before
        compression), MediaTypeUnknown, SignatureInvalid to sign without a key, and ArgumentsInvalid unless `one` has
        one argument.
        """
        value, arguments = single(args, kwargs, job) if one else pack(args, kwargs)
        chosen = self.get(serializer)
        body = chosen.dumps(value)
        if not isinstance(body, bytes):
            raise EncodeError(f"serializer {chosen.name!r} returned {type(body).__name__}; it must return bytes.")
        if not body:
            # An empty body means a call without arguments, so these arguments would be lost.
            raise EncodeError(f"serializer {chosen.name!r} returned an empty body; it must return at least one byte.")
        content_type = chosen.media_type
        if sign:
            body = self._signer().wrap(body, content_type=content_type, job=job, id=id)
            content_type = SIGNED
        if compression:
            if len(body) > MAX_DECOMPRESSED:
                raise _too_large(job, len(body), "before compression", MAX_DECOMPRESSED)
            packer = self.compression(compression)
            body, compression = packer.compress(body), packer.name
        if len(body) > MAX_BODY:
            raise _too_large(job, len(body), f"as {chosen.name}", MAX_BODY)
        return Encoded(content_type=content_type, content_encoding=compression, body=body, arguments=arguments)

    def decode(
        self,
        message: Message,
        *,
        accept: Accept,
        classes: Mapping[str, type] = NO_CLASSES,
        raw: type[bytes] | type[str] | None = None,
    ) -> object:
        """The value in a message's body, for a job to run with; None for an empty body.

        `classes` are the dataclasses and enums that may be restored, see `classes_in`. A body without a media type is
        passed unchanged to a job that wants `raw`, unless it is an event; otherwise it is decoded as JSON, or passed as
        bytes if it isn't JSON.

        Raises MediaTypeUnknown, MediaTypeRefused, DecodeError, SignatureInvalid, BodyTooLarge.
        """
        if message.content_type == STEP:
            decode = partial(self.decode, accept=accept, classes=classes, raw=raw)
            return self.load(
                unpack(message.body, Value), classes, accept=accept, own=lambda one: decode(_of(message, one))
            )
        sniffed = message.content_type == OCTETS and not self._reads_octets(message)
        given = raw if message.content_type == OCTETS and is_untyped(message) and not message.topic else None
        if sniffed and given is None:
            message = with_media_type(message)
        kind, body = media_type(message.content_type), None
        if kind == SIGNED:
            job, id = message.signed_job, message.signed_id
            kind, body = self._signer().unwrap(self._decompressed(message), job=job, id=id)
            kind = media_type(kind)
        elif accept.signed_only:
            raise MediaTypeRefused(
                f"message {message.id} is not signed, but this worker accepts only signed messages. Enqueue it with"
                " sign=True and one of this worker's keys."
            )
        elif given is not None:
            return _as_raw(message, given)
        elif not message.body:
            return None
        elif sniffed and is_untyped(message):
            return message.body
        serializer = self.get(kind)
        if not accept.permits(serializer):
            raise self._refused(serializer, kind, message, accept)
        if body is None:
            body = self._decompressed(message)
        return (
            serializer.loads(body, {**self._formats.classes, **classes} if self._formats.classes else classes)
            if body
            else None
        )

    def load(
        self, value: Value, classes: Mapping[str, type] = NO_CLASSES, *, accept: Accept, own: Own = None
    ) -> object:
        """The value, with the outputs of the steps that it uses; `own` reads the value itself.

        Raises MediaTypeUnknown, MediaTypeRefused, DecodeError, and ResultRefused for an unavailable output.
        """

        def read(value: Value) -> object:
            serializer = self.get(value.content_type)
            if accept.signed_only or not accept.permits(serializer):
                raise MediaTypeRefused(
                    "the output of a step is not signed, but this worker accepts only signed messages."
                    if accept.signed_only
                    else f"the output of a step has the content type {value.content_type}, which this worker does not"
                    f" accept. If you trust the publisher, add --accept {serializer.name}."
                )
            return serializer.loads(value.body, classes)

        return loaded(value, read, own)

    def decode_for_display(self, message: Message, *, verify: bool = False, most: int = MAX_DECOMPRESSED) -> object:
        """The value in a message's body, only for display; None for an empty body.

        Restores no class (see Unrestored), and needs no signing key unless it should `verify`. Raises
        SerializationError, MediaTypeRefused for an unsafe serializer, and BodyTooLarge for a body above `most` bytes.
        """
        if len(message.body) > most:
            raise BodyTooLarge(
                f"the body of message {message.id} has {len(message.body):,} bytes; the maximum is {most:,}."
            )
        if message.content_type == STEP:
            show = partial(self.decode_for_display, verify=verify, most=most)
            value = unpack(message.body, Value)
            try:
                return self.load(value, FOR_DISPLAY, accept=Accept.default(), own=lambda one: show(_of(message, one)))
            except ResultRefused as error:
                raise DecodeError(str(error)) from None
        kind, body = self._inside(message, verify=verify, most=most)
        if not body or (is_untyped(self._sniffed(message)) and not self._reads_octets(message)):
            return body or None
        serializer = self.get(kind)
        if not serializer.safe:
            raise MediaTypeRefused(
                f"message {message.id} has the content type {kind}, which is not decoded for display, because decoding"
                " could run untrusted code."
            )
        return serializer.loads(body, FOR_DISPLAY)

    def written_by(self, message: Message) -> str:
        """The media type of the serializer that wrote a body, also of a signed one.

        Raises BodyTooLarge, DecodeError, MediaTypeUnknown.
        """
        return self._inside(message, verify=False)[0]

    def get(self, name: str) -> Serializer:
        """The serializer with this name or media type, which may have parameters. Raises MediaTypeUnknown."""
        serializer = self._formats.serializers.get(name)
        if serializer is None:
            self._discover()
            name = media_type(name)
            if name not in self._formats.serializers:
                self._search()
            serializer = self._formats.serializers.get(name)
        if serializer is None:
            raise self._unknown("serializer", name, self.names())
        return serializer

    def compression(self, name: str) -> Compression:
        """The compression with this name, as in content_encoding. Raises MediaTypeUnknown."""
        self._discover()
        wanted = name.strip().lower().removeprefix("x-")
        if wanted not in self._formats.compressions:
            self._search()
        if wanted not in self._formats.compressions:
            raise self._unknown("compression", name, self.compressions())
        return self._formats.compressions[wanted]

    def names(self) -> list[str]:
        """The names of all serializers, sorted."""
        self._discover()
        self._search()
        return sorted({serializer.name for serializer in self._formats.serializers.values()})

    def compressions(self) -> list[str]:
        """The names of all compressions, sorted."""
        self._discover()
        self._search()
        return sorted(self._formats.compressions)

    def register(self, serializer: Serializer) -> None:
        """Add a serializer under its name and its media type, replacing an existing one.

        Raises OptionInvalid for an object that lacks a member of Serializer, or has one of a wrong type.
        """
        self._discover()
        self._add_serializer(serializer)

    def unregister(self, name: str) -> None:
        """Remove a serializer, by name or media type. Raises MediaTypeUnknown."""
        gone = self.get(name)
        self._formats.serializers = {key: kept for key, kept in self._formats.serializers.items() if kept is not gone}

    def register_compression(self, compression: Compression) -> None:
        """Add a compression, replacing one with the same name. Raises OptionInvalid, like `register`."""
        self._discover()
        self._add_compression(compression)

    def register_class(self, cls: C) -> C:
        """Allow a dataclass or enum to be restored in every job, without an annotation. A decorator."""
        self._formats.classes = {**self._formats.classes, dotted_name(cls): cls}
        return cls

    @property
    def classes(self) -> Mapping[str, type]:
        """The classes given to register_class, by dotted name."""
        return self._formats.classes

    def check(self, accept: Accept) -> None:
        """Raise MediaTypeUnknown if `accept` names an unregistered format.

        Also loads the built-in formats, before a worker forks its slots.
        """
        self._discover()
        for name in sorted(accept.names):
            self.get(name)

    def _refused(self, serializer: Serializer, kind: str, message: Message, accept: Accept) -> MediaTypeRefused:
        known = {each.media_type: each for each in self._formats.serializers.values()}
        accepted = ", ".join(sorted(name for name, each in known.items() if accept.permits(each))) or "nothing"
        return MediaTypeRefused(
            f"message {message.id} has the content type {kind}, but this worker accepts only {accepted}. If you trust"
            f" the publisher, add --accept {serializer.name}."
        )

    def _decompressed(self, message: Message, most: int = MAX_DECOMPRESSED) -> bytes:
        encoding = message.content_encoding
        if not encoding or not message.body or encoding.strip().lower() in _NO_COMPRESSION:
            # Another program may send a larger body than Palermo does. Its values would take many times the size, and
            # minutes to read.
            if len(message.body) > MAX_DECOMPRESSED:
                raise _too_large(message.job, len(message.body), "in this message", MAX_DECOMPRESSED)
            return message.body
        return self.compression(encoding).decompress(message.body, most)

    def _inside(self, message: Message, *, verify: bool, most: int = MAX_DECOMPRESSED) -> tuple[str, bytes]:
        """The media type and body as the serializer wrote them, without compression or signature."""
        kind, body = media_type(self._sniffed(message).content_type), self._decompressed(message, most)
        if kind == SIGNED:
            if verify:
                kind, body = self._signer().unwrap(body, job=message.signed_job, id=message.signed_id)
            else:
                kind, body = self._wrapper().unwrap_unverified(body)
        return media_type(kind), body

    def _reads_octets(self, message: Message) -> bool:
        """Whether a user's serializer has registered this media type; events don't use serializers."""
        return OCTETS in self._formats.serializers and not message.topic

    def _sniffed(self, message: Message) -> Message:
        return message if self._reads_octets(message) else with_media_type(message)

    def _wrapper(self) -> Signing:
        signing: Signing = pkgutil.resolve_name(_SIGNED_WRAPPER)(self._keys)
        return signing

    def _signer(self) -> Signing:
        if self._signing is None:
            raise SignatureInvalid("no key is set to sign or verify messages. Set signing_keys.")
        return self._signing

    def _discover(self) -> None:
        """Load the built-in formats, once."""
        if self._formats.undiscovered:
            self._load(own)
            # Set last, so that another thread doesn't find half of them and report the rest as unknown.
            self._formats.undiscovered = False

    def _search(self) -> None:
        """Load other installed formats, once."""
        if self._formats.unsearched:
            self._load(lambda group: {name: each for name, each in installed(group).items() if name not in own(group)})
            self._formats.unsearched = False

    def _load(self, plugins: Callable[[str], Mapping[str, Plugin]]) -> None:
        """Load these plug-ins; one that can't be imported is skipped."""
        serializer, compression = self._add_serializer, self._add_compression
        for group, add in (("palermo.serializers", serializer), ("palermo.compressions", compression)):
            for entry in plugins(group).values():
                try:
                    add(entry.load()())
                except (ImportError, AttributeError) as error:
                    self._formats.broken.append(f"{entry.name} ({entry.value}) could not be imported: {error}")
                except OptionInvalid as error:
                    self._formats.broken.append(str(error).removesuffix("."))

    def _add_serializer(self, serializer: Serializer) -> None:
        check_serializer(serializer)
        names = (serializer.name, serializer.media_type)
        self._formats.serializers = {**self._formats.serializers, **dict.fromkeys(names, serializer)}

    def _add_compression(self, compression: Compression) -> None:
        check_compression(compression)
        self._formats.compressions = {**self._formats.compressions, compression.name: compression}

    def _unknown(self, what: str, name: str, known: Iterable[str]) -> MediaTypeUnknown:
        return MediaTypeUnknown(
            f"no {what} {name[:80]!r} is registered (there are: {', '.join(known) or 'none'}). "
            + "".join(f"{text}. " for text in self._formats.broken)
            + "Check the name, or install the package that provides it."
        )


@lru_cache(maxsize=256)
def media_type(text: str) -> str:
    """The media type, or the name of a serializer, in lower case and without parameters."""
    return text.partition(";")[0].strip().lower()


def _of(message: Message, value: Value) -> Message:
    """The message with a step's arguments, without the outputs that they use."""
    return replace(message, content_type=value.content_type, body=value.body)


def _as_raw(message: Message, kind: type[bytes] | type[str]) -> bytes | str:
    """The unchanged body, as the type in the parameter's annotation. Raises DecodeError for text that is not UTF-8."""
    if kind is bytes:
        return message.body
    try:
        return message.body.decode()
    except UnicodeDecodeError as error:
        raise DecodeError(f"the body of message {message.id} is not UTF-8 text: {error}.") from None


def _too_large(job: str, size: int, how: str, limit: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"the arguments of {job} have {size:,} bytes {how}; the maximum is {limit:,}. "
        "Store the data elsewhere and pass a reference to it."
    )
