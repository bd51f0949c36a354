"""A lifespan for web applications: start a pool with the application, drain it at the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from poolhand.errors import UsageError
from poolhand.misuse import explain_misuse
from poolhand.pool.faces.agent_pool import MAX_WORKERS, MIN_WORKERS, AgentPool
from poolhand.pool.pool import Pool
from poolhand.pool.submitter import UNSET
from poolhand.rules.scaling.pool_size import Autoscale
from poolhand.rules.validation import SECONDS_ALLOWED, Seconds, is_seconds, shown, to_seconds

Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]


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
    _check(pool, within, autoscale)

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


def _check(pool: Any, drain_timeout: Any, autoscale: Any) -> None:
    faults = []
    if not isinstance(pool, Pool | AgentPool):
        faults.append(f"pool={shown(pool)} is not allowed; it must be a Pool or an AgentPool")
    if not is_seconds(drain_timeout):
        faults.append(
            f"drain_timeout={shown(drain_timeout)} is not allowed; give {SECONDS_ALLOWED}"
        )
    if not (autoscale is UNSET or autoscale is None or isinstance(autoscale, Autoscale)):
        faults.append(
            f"autoscale={shown(autoscale)} is not allowed; it must be an Autoscale(…), or None"
        )
    if faults:
        raise UsageError("pool_lifespan: " + "; ".join(faults))
