"""Two services that share a pool and have different tasks; a third task is in neither."""

from __future__ import annotations

import os

from poolhand import App

URL = os.environ.get("FARM_STORE", "memory://")
first, second = App(URL), App(URL)


@first.task(name="bill")
async def bill(number: int) -> int:
    return number


@second.task(name="ship")
async def ship(number: int) -> int:
    return -number
