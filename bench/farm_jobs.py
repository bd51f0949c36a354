"""The app of the farm benchmark, which its worker processes import."""

from __future__ import annotations

import asyncio
import os

from poolhand import App

app = App(os.environ["FARM_URL"])


@app.task
async def nothing() -> None:
    return None


@app.task
async def pass_time(seconds: float) -> None:
    await asyncio.sleep(seconds)
