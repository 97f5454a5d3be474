"""Taking waiting jobs out of a queue by name and arguments, as Resque's `dequeue` does."""

from collections.abc import Mapping, Sequence

from palermo.broker import Keep, Remove, Verdict
from palermo.core.arguments import unpack
from palermo.core.message import Message
from palermo.rows import arguments_of
from palermo.serialization import Serializers


class Dequeuing:
    """Takes the messages of one job out: all of them, or those with exactly these arguments.

    With `count_only` it takes none. Arguments are compared as they read back from the wire,
    where 1 is not True and a tuple is as good as a list; those of a serializer that is not
    safe (pickle) are never decoded for this and so never match.

    Raises EncodeError for arguments that no message can hold.
    """

    def __init__(
        self,
        job: str,
        args: Sequence[object] | None,
        kwargs: Mapping[str, object] | None,
        *,
        serializers: Serializers,
        one: bool = False,
        count_only: bool = False,
    ) -> None:
        """`one` is for jobs declared with arguments="one", whose body is their single argument."""
        self.count = 0
        self._job = job
        self._serializers = serializers
        self._one = one
        self._verdict: Verdict = Keep() if count_only else Remove()
        self._wanted: tuple[list[object], dict[str, object]] | None = None
        if args is not None or kwargs is not None:
            # There and back, so that dataclasses and enums look as they will in the messages.
            encoded = serializers.encode(args or (), kwargs or {}, job=job, id="-")
            probe = Message(id="-", queue="-", job=job, body=encoded.body, content_type=encoded.content_type)
            self._wanted = unpack(serializers.look(probe), encoded.arguments)

    def __call__(self, message: Message) -> Verdict:
        if message.job != self._job:
            return Keep()
        if self._wanted is not None:
            there = arguments_of(message, self._serializers, one=self._one)
            if there is None or not _same(there[0], self._wanted[0]) or not _same(there[1], self._wanted[1]):
                return Keep()
        self.count += 1
        return self._verdict


def _same(left: object, right: object) -> bool:
    match left, right:
        case bool(), _:
            return left is right
        case _, bool():
            return False
        case ((list() | tuple()), (list() | tuple())):
            return len(left) == len(right) and all(map(_same, left, right))
        case dict(), dict():
            return left.keys() == right.keys() and all(_same(value, right[key]) for key, value in left.items())
        case float(), float() if left != left:  # NaN, which is not even itself
            return right != right
        case _:
            return left == right
