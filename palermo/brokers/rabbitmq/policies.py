"""The policies that remove jobs from queues, for the doctor.

AMQP doesn't expose policies. RabbitMQ's management plugin does, if it is enabled and accessible to this user; otherwise
the doctor reports that they are unknown.
"""

import asyncio
import base64
import http.client
import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.seconds import CHECKED_WITHIN
from palermo.contract.broker import Finding
from palermo.core.text import count

#: The plugin's default port, and the maximum size of its answer in bytes.
PORT, _MOST = 15672, 50_000_000

#: Settings of policies that remove jobs, and how.
_TAKES_AWAY = {
    "message-ttl": "jobs that wait longer than {} ms are lost",
    "expires": "a queue that is not used for {} ms is deleted with its jobs",
    "max-length": "the oldest jobs beyond {} are lost",
    "max-length-bytes": "the oldest jobs beyond {} bytes are lost",
    "delivery-limit": "a job that is requeued more than {} times is lost",
    "dead-letter-exchange": "lost jobs go to exchange {!r}, which no worker serves",
}

#: Delivery limits from here on are harmless, since no job reaches them. Palermo's quorum queues have this one.
_HIGH = 1_000_000

Definitions = Mapping[str, Mapping[str, Any]]


async def definitions(connection: Connection) -> Definitions | None:
    """The settings made by policies, by AMQP queue of the virtual host; None if they are not accessible."""
    address = connection.address
    if address.scheme != "amqp":
        return None  # never send the password over a less secure connection than the broker's
    try:
        async with asyncio.timeout(2 * CHECKED_WITHIN):
            return await asyncio.to_thread(_ask, connection.host[0], address.username, address.password, address.vhost)
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, AttributeError):
        return None


def _ask(host: str, user: str, password: str, vhost: str) -> Definitions:
    asked = http.client.HTTPConnection(host, PORT, timeout=CHECKED_WITHIN)
    try:
        login = base64.b64encode(f"{user}:{password}".encode()).decode()
        path = f"/api/queues/{quote(vhost, safe='')}?columns=name,effective_policy_definition"
        asked.request("GET", path, headers={"Authorization": f"Basic {login}"})
        answer = asked.getresponse()
        if answer.status != http.client.OK:
            raise ValueError(f"status {answer.status}")
        rows = json.loads(answer.read(_MOST))
        key = "effective_policy_definition"  # missing for a queue that is only a few seconds old
        return {str(row["name"]): dict(row[key] or {}) for row in rows if key in row}
    finally:
        asked.close()


def findings(found: Definitions | None, queues: Iterable[str], own: str, where: str) -> list[Finding]:
    """The findings about these AMQP queues, and about Palermo's own, whose names start with `own`."""
    named = {*queues, *(name for name in found or () if name.startswith(own))}
    # The port may belong to another RabbitMQ on this machine, with the same user.
    if found is None or named.isdisjoint(found):
        return [
            Finding.ok(
                "policies",
                f"not checked, because the management plugin at {where} shows this user none of Palermo's queues."
                " Check `rabbitmqctl list_policies` and `rabbitmqctl list_operator_policies` for policies that remove"
                " jobs",
            )
        ]
    harms = {name: text for name in sorted(named) if (text := _harm(found.get(name, {})))}
    return [
        Finding.problem(
            f"queue {name}",
            f"a policy removes jobs: {text}",
            "Change the policy's pattern or definition. `rabbitmqctl list_policies` and `rabbitmqctl"
            " list_operator_policies` list the policies.",
        )
        for name, text in harms.items()
    ] or [
        Finding.ok(
            "policies",
            f"no policy removes jobs from the {count(len(named & found.keys()), 'queue')} that the management plugin"
            " shows",
        )
    ]


def _harm(definition: Mapping[str, Any]) -> str:
    """The loss of jobs that a queue's policies cause; "" for none."""
    refuses = str(definition.get("overflow", "")).startswith("reject-publish")
    harms = [
        text.format(definition[key])
        for key, text in _TAKES_AWAY.items()
        if key in definition
        and not (key.startswith("max-length") and refuses)
        and not (key == "delivery-limit" and int(definition[key]) >= _HIGH)
    ]
    return "; ".join(harms)
