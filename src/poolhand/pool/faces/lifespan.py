"""A lifespan for web applications: start a pool with the application, drain it at the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from poolhand.misuse import explain_misuse
from poolhand.pool.config import ALLOWED as POOL_ALLOWED
from poolhand.pool.faces.agent_pool import MAX_WORKERS, MIN_WORKERS, AgentPool
from poolhand.pool.pool import Pool
from poolhand.pool.submitter import UNSET
from poolhand.rules.scaling.pool_size import Autoscale
from poolhand.rules.validation import (
    SECONDS,
    OptionRule,
    OptionTable,
    Seconds,
    raise_faults,
    table_faults,
    to_seconds,
)

Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]

ALLOWED: OptionTable = {
    "pool": OptionRule(lambda value: isinstance(value, Pool | AgentPool), "a Pool or an AgentPool"),
    "drain_timeout": SECONDS,
    "autoscale": POOL_ALLOWED["autoscale"],
}


@explain_misuse
def pool_lifespan(
    pool: Pool | AgentPool, *, drain_timeout: Seconds = 30.0, autoscale: Autoscale | None = UNSET
) -> Lifespan:
    """Return a lifespan for FastAPI or Starlette that starts the pool and drains it at the end.

    An AgentPool scales itself as by `auto_scale()`, with bounds that include its `num_workers`; a
    Pool scales as its own option says. `autoscale` overrides these settings, None keeps the size.
    An AgentPool can be started again by the same lifespan.
    """
    within = to_seconds(drain_timeout)
    given = {"pool": pool, "drain_timeout": within}
    if autoscale is not UNSET:
        given["autoscale"] = autoscale
    raise_faults("pool_lifespan", table_faults(ALLOWED, given))

    @asynccontextmanager
    async def lifespan(app: object) -> AsyncIterator[None]:
        await pool.start()
        try:
            if autoscale is not UNSET:
                beneath = pool.pool if isinstance(pool, AgentPool) else pool
                beneath.set_autoscale(autoscale)
            elif isinstance(pool, AgentPool):
                # Widen the bounds to include the given size, whatever it is.
                await pool.auto_scale(
                    min_workers=min(MIN_WORKERS, pool.num_workers),
                    max_workers=max(MAX_WORKERS, pool.num_workers),
                )
            yield
        finally:
            await (pool.pool if isinstance(pool, AgentPool) else pool).leave(within)

    return lifespan
