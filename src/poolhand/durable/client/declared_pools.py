"""The pools that an app declares, and those that its tasks name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Unpack

from msgspec.structs import replace

from poolhand.errors import UsageError
from poolhand.observe.failures import warn
from poolhand.pool.config import PoolConfig, PoolOptions, configure, spec_of
from poolhand.rules.queue.backpressure import Unbounded
from poolhand.rules.queue.stored_desk import PoolSpec, distinct_texts
from poolhand.rules.validation import POOL_NAME, nearest

SCOPED = ("scope", "scope_id", "pipeline_id", "store", "dir")


class DeclaredPools:
    """Holds the settings of each pool; a name close to that of a declared pool is an error."""

    def __init__(self) -> None:
        self.configs: dict[str, PoolConfig] = {}
        self._capped: dict[str, bool] = {}
        self._used: set[str] = set()

    def add(self, name: str, **options: Unpack[PoolOptions]) -> PoolConfig:
        """Declare a pool."""
        if "autoscale" in options:
            raise UsageError(
                f"pool {name!r}: autoscale goes with a pool in memory; here max_concurrent caps "
                "all processes together, and each worker has its own number of slots"
            )
        if scoped := [option for option in SCOPED if option in options]:
            raise UsageError(
                f"pool {name!r}: {', '.join(scoped)} goes with Pool(…); a pool of an app is kept "
                "in the store of the app"
            )
        config = configure(name, options)
        capped = "max_concurrent" in options
        if not capped and not isinstance(config.backpressure, Unbounded):
            raise UsageError(
                f"pool {name!r}: backpressure={config.backpressure} needs a cap: without one every "
                "job may start at once, and the pool is never full; give max_concurrent=…, how "
                "many of its jobs run at a time in all processes"
            )
        self._check_near_miss(self._used - {name}, declared={name})
        self._check_again(name, config, capped)
        self.configs[name] = config
        self._capped[name] = capped
        return config

    def _check_again(self, name: str, config: PoolConfig, capped: bool) -> None:
        """Raise if the pool is already declared with other settings."""
        before = self.configs.get(name)
        if before is None:
            return
        faults = []
        for setting in config.__struct_fields__:
            pair = getattr(before, setting), getattr(config, setting)
            if setting == "max_concurrent":
                pair = pair[0] if self._capped[name] else None, pair[1] if capped else None
            if pair[0] != pair[1]:
                one, other = distinct_texts(*pair)
                faults.append(f"{setting} is {one} there and {other} here")
        if faults:
            raise UsageError(
                f"pool {name!r} is already declared with other settings: {', '.join(faults)}; "
                "declare it once, or with the same settings each time"
            )

    def specs(self, id_of: Callable[[str], str]) -> list[PoolSpec]:
        """Return the specs of all declared pools for the store, sorted by name."""
        return [self.spec(name, id_of(name)) for name in sorted(self.configs)]

    def spec(self, name: str, id: str) -> PoolSpec:
        """Return the spec of a declared pool for the store; without a cap its slots are None."""
        spec = spec_of(self.configs[name], id)
        return spec if self._capped[name] else replace(spec, slots=None)

    def slots(self, pool: str) -> int | None:
        """Return the cap of a pool, None if it has none."""
        return self.configs[pool].max_concurrent if self._capped.get(pool) else None

    def find(self, pool: str) -> PoolConfig:
        """Return the settings of a pool; an undeclared pool has the defaults."""
        config = self.configs.get(pool)
        return UNDECLARED if config is None else config

    def check_use(self, pool: str) -> None:
        """Raise if `pool` is no valid name, or close to that of a declared pool."""
        POOL_NAME.require("pool", pool)
        self._check_near_miss({pool}, declared=set(self.configs))

    def use(self, pool: str, task: str, url: str) -> None:
        """Note that a task uses this pool; warn if the task's name is not unique in the store."""
        self._used.add(pool)
        if task.startswith("__main__.") and not url.lower().startswith("memory:"):
            warn(
                f"task {task!r} was typed in, or its script came through -c or a pipe: tasks of "
                "all such scripts share this name in the store; give the task a name: "
                "@app.task(name=…)"
            )

    def served(self) -> tuple[str, ...]:
        """Return the pools that are declared or used by a task."""
        return tuple(sorted(self._used.union(self.configs)))

    def warn_of_unknown(self, pools: Iterable[str] | None, what: str) -> None:
        """Warn of pools to be served that are not declared and that no task uses."""
        known = self.served()
        for pool in pools or ():
            if pool not in known:
                near = nearest(pool, known)
                hint = "" if near is None else f"; did you mean {near!r}?"
                warn(f"{what}: pool {pool!r} is not declared and no task uses it{hint}")

    def check(self) -> None:
        """Raise if a task uses an undeclared pool whose name is close to a declared one."""
        self._check_near_miss(self._used, declared=set(self.configs))

    def _check_near_miss(self, used: set[str], declared: set[str]) -> None:
        for pool in sorted(used - self.configs.keys()):
            if pool in declared:
                continue
            near = nearest(pool, declared, cutoff=0.8)
            if near is not None:
                raise UsageError(
                    f"pool {pool!r} is not declared, but {near!r} is: correct the name, or "
                    f"declare it with app.pool({pool!r})"
                )


UNDECLARED = PoolConfig("default")
