"""Bodies that Palermo never writes into its own streams and queues, each wrong in another way."""

import json

#: Names by which Palermo's readers know their records.
_NAMES = ("unique", "kind", "made", "end")

RECORDS: tuple[bytes, ...] = (
    b"\xff\x00 no JSON",
    b"[" * 10_000,
    *(
        json.dumps(value).encode()
        for value in (
            *({name: value} for name in _NAMES for value in ([1], 7, "\ud800")),
            *({"kind": kind, "name": 7, "value": True} for kind in ("queue", "pause", "group", "unique job")),
            *({"kind": kind, "name": "\ud800", "value": 7} for kind in ("queue", "pause", "group", "unique job")),
            {"cancel": ["a"], "at": 10**30},
            {"worker": "pid:1@h", "since": 1e300, "inbox": "\ud800", "runs": ["a"]},
            {"worker": "pid:1@h", "since": 5.0, "inbox": "x\n", "runs": ["a"]},
            {"version": 1, "records": [{"kind": [], "at": {}}, {"kind": "failed", "at": 5, "id": [1], "job": {}}]},
            {"format": 1, "n": 1, "by": "x", "set": {"k": [1]}, "jobs": [7]},
            {"all": 7},
        )
    ),
)
