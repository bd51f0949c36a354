"""A program with a farm and its view on one terminal, as `poolhand work --tui`.

It writes the farm's record, stops when the view or a signal says so or the view has ended, and
writes to a file how it ended.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from msgspec.structs import replace

from poolhand.contract import Put
from poolhand.farm.records import FARMS, FarmState, write
from poolhand.operate.actions import Operator
from poolhand.runtime import Runtime
from poolhand.stores.open import store_of
from poolhand.tui import LiveView
from tests.unit.operate.test_farms import FARM, a_farm, a_worker


async def main(url: str, at_once: bool) -> str:
    """Return what ended the farm."""
    runtime = Runtime()
    store = store_of(url, runtime)
    await store.open()
    farm = a_farm(FARM, a_worker(1), started_at=runtime.wall())
    quits = asyncio.Queue[str]()
    view = LiveView(
        Operator(store, runtime),
        by="anna",
        farm_id=FARM,
        on_quit=lambda fast: quits.put_nowait("fast" if fast else "graceful"),
    )
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, quits.put_nowait, "signal")
    await store.put([Put(f"{FARMS}{FARM}", write(farm))])
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    shown = asyncio.create_task(view.run())
    shown.add_done_callback(lambda _: quits.put_nowait("view"))
    if at_once:
        await asyncio.sleep(0)
        quits.put_nowait("early")
    how = [await quits.get()]
    if how != ["early"]:
        await store.put([Put(f"{FARMS}{FARM}", write(replace(farm, state=FarmState.STOPPING)))])
    if how == ["graceful"]:
        how.append(await quits.get())
    # Tasks that a farm starts, while it is shown and after that, must not be eager.
    if how != ["early"] and loop.get_task_factory() is not None:
        how.append("eagerly")
    view.end()
    await shown
    if loop.get_task_factory() is not None:
        how.append("eagerly after that")
    await store.close()
    return ", ".join(how)


if __name__ == "__main__":
    url, file, *more = sys.argv[1:]
    Path(file).write_text(asyncio.run(main(url, "at once" in more)))
