"""Events on their way to the broker: a topic and a payload, made ready."""

import time
from typing import TYPE_CHECKING, Any

from palermo.core.message import Message
from palermo.core.preview import preview
from palermo.core.topics import Event, check_topic
from palermo.core.topology import check_id
from palermo.ids import new_id
from palermo.options import PUBLISHABLE, check_options

if TYPE_CHECKING:
    from palermo.client import Client


def event(client: "Client", topic: str, payload: Any, options: dict[str, Any]) -> Event:
    """The event, to be published by `Events.publish`. Raises TopicInvalid, OptionInvalid, IdInvalid, EncodeError."""
    check_topic(topic)
    check_options(options, PUBLISHABLE, "publish")
    settings = client.settings
    id = check_id(options.get("id") or new_id())
    chosen = {name: options.get(name) for name in ("serializer", "compression", "sign")}
    encoded = client.serializers.encode(
        (payload,),
        {},
        job=topic,
        id=id,
        serializer=settings.serializer if chosen["serializer"] is None else chosen["serializer"],
        compression=settings.compression if chosen["compression"] is None else chosen["compression"],
        sign=settings.sign if chosen["sign"] is None else chosen["sign"],
        one=True,
    )
    now = time.time()
    message = Message(
        id=id,
        queue="",
        job="",
        body=encoded.body,
        content_type=encoded.content_type,
        content_encoding=encoded.content_encoding,
        created_at=int(now),
        queued_at=now,
        preview=preview((payload,), {}),
        extra={"topic": topic},
    )
    return Event(topic, message)
