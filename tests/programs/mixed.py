"""More jobs of the soak: one that another program publishes, those that mean harm, and one that recurs."""

import asyncio
import os
from datetime import datetime

from soaked import open_file, say

import palermo

FOREIGN, HOSTILE, TICKS = map(open_file, ("foreign", "hostile", "ticks"))


@palermo.job
async def foreign(number, takes):
    say("begins", number, FOREIGN)
    await asyncio.sleep(takes)
    say("ends", number, FOREIGN)


@palermo.job
async def hostile(number):
    say("begins", number, HOSTILE)
    say("ends", number, HOSTILE)


@palermo.job
async def monster(number):
    say("begins", number, HOSTILE)
    raise type("E" * 300_000, (Exception,), {})(number)


if os.environ.get("SOAK_RECURS"):

    @palermo.job(every=1, missed="all", queue="calls", schedule_name="tick")
    async def tick():
        instant = palermo.current_job().id.partition("@")[2]
        number = int(datetime.fromisoformat(instant).timestamp())
        say("begins", number, TICKS)
        say("ends", number, TICKS)
