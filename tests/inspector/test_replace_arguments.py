"""Other arguments for a failed job, and what is signed by whom."""

import pytest

from palermo.contract.serialization import Serializers
from palermo.core.message import Message
from palermo.errors import SignatureInvalid
from palermo.inspector.changes import Rewriter


def test_a_forged_message_is_not_signed_anew_with_half_of_its_arguments() -> None:
    ours = Serializers.default(signing_keys=["k" * 16])
    forged = Serializers.default(signing_keys=["x" * 16]).encode(["evil"], {}, job="a.b", id="7", sign=True)
    message = Message(id="7", queue="q", job="a.b", body=forged.body, content_type=forged.content_type)
    rewriting = Rewriter(ours, kwargs={"to": "x"})

    with pytest.raises(SignatureInvalid):
        rewriting(message)


def test_a_signed_message_is_signed_anew_in_the_serializer_it_came_in() -> None:
    ours = Serializers.default(signing_keys=["k" * 16])
    encoded = ours.encode(["a"], {}, job="a.b", id="7", serializer="msgpack", sign=True)
    message = Message(id="7", queue="q", job="a.b", body=encoded.body, content_type=encoded.content_type)

    rewritten = Rewriter(ours, kwargs={"to": "x"})(message)

    assert ours.written_by(rewritten) == "application/msgpack"
    assert ours.decode_for_display(rewritten, verify=True) == {"args": ["a"], "kwargs": {"to": "x"}}
