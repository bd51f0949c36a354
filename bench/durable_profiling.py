"""Where the CPU time of stored jobs goes, thread by thread."""

from __future__ import annotations

import asyncio
import cProfile
import pstats
import sys
from collections.abc import Awaitable, Callable

from durable_cases import Scale
from durable_ground import Ground

PUT, TAKE = "submit_many", "worker"
JOBS = Scale().jobs
TOP = 30


def profile(ground: Ground) -> None:
    """Print the functions with the highest own time, by phase, of the loop and of the store thread.

    One thread at a time: each pass is a separate run. The profiler inflates small calls.
    """
    for phase in (PUT, TAKE):
        for in_store_thread in (False, True):
            thread = "store thread" if in_store_thread else "loop of the user"
            print(f"{phase}, {thread}: {JOBS:,} jobs", flush=True)
            with ground.place() as where:
                profiler = asyncio.run(_profiled(where, phase, in_store_thread))
            pstats.Stats(profiler, stream=sys.stdout).sort_stats("tottime").print_stats(TOP)


async def _profiled(where: str, phase: str, in_store_thread: bool) -> cProfile.Profile:
    from durable_ours import WARM_UP, Bench, url_of

    bench, profiler = Bench(url_of(where)), cProfile.Profile()
    async with bench.app:
        await bench.put_many(WARM_UP)
        await bench.drain(WARM_UP)
        connection = await bench.app.core.connection()

        async def switch(act: Callable[[], None]) -> None:
            async def on_thread() -> None:
                act()

            await (connection.thread.ask(on_thread) if in_store_thread else on_thread())

        async def measured(wanted: str, work: Awaitable[object]) -> None:
            if wanted == phase:
                await switch(profiler.enable)
            await work
            if wanted == phase:
                await switch(profiler.disable)

        await measured(PUT, bench.put_many(JOBS))
        await measured(TAKE, bench.drain(JOBS))
    return profiler
