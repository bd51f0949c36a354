"""Where the time of no-op jobs goes."""

from __future__ import annotations

import cProfile
import pstats
import sys

from contestants import no_op, ours
from probe import WARM_UP, runner


def profile(jobs: int, top: int = 25) -> None:
    """Print the functions with the highest own time; the profiler inflates small calls."""
    profiler = cProfile.Profile()
    with runner("asyncio") as running:
        running.run(ours(WARM_UP, no_op))
        profiler.enable()
        running.run(ours(jobs, no_op))
        profiler.disable()
    pstats.Stats(profiler, stream=sys.stdout).sort_stats("tottime").print_stats(top)
