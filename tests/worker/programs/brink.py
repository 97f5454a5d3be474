"""`palermo`, whose worker stops between having a result stored and acknowledging its job: a file tells when."""

import asyncio
import os
from pathlib import Path

from palermo.cli import main
from palermo.worker.lane import Lane

settle = Lane._settle


async def never(self, live, delivery, result):
    Path(os.environ["BRINK"]).touch()  # noqa: ASYNC240 - at once
    await asyncio.sleep(3_600)
    return await settle(self, live, delivery, result)


Lane._settle = never

main()
