"""The argument of the measured job, 1 kB as JSON: numbers, texts, a list of small objects. The same in every system."""

import time
from typing import Any

_ORDER: dict[str, Any] = {
    "id": 424242,
    "kind": "order.created",
    "paid": True,
    "total": 1234.56,
    "customer": {"id": 7, "name": "Grace Hopper", "email": "grace@example.org", "tags": ["a", "b", "c"]},
    "items": [
        {"sku": f"SKU-{n:05}", "quantity": n, "price": 9.99 + n, "title": "A thing with a name"} for n in range(8)
    ],
    "note": "x" * 220,
}


def order(sleep: float = 0.0) -> dict[str, Any]:
    """One to enqueue now, for a job that sleeps so many seconds."""
    return {**_ORDER, "enqueued": time.monotonic_ns(), "sleep": sleep}


def stamp_of(order: dict[str, Any]) -> int:
    """When it was made, in nanoseconds of the monotonic clock."""
    return int(order["enqueued"])


def sleep_of(order: dict[str, Any]) -> float:
    """Seconds that its job sleeps."""
    return float(order["sleep"])
