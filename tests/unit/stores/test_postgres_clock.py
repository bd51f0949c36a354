"""The time of a PostgreSQL store advances evenly, whatever happens to the server's clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from poolhand.contract import JobBatch, Put
from poolhand.runtime import Runtime
from poolhand.stores.postgres.connections import LONG, SLACK, ClockStepped, ServerClock
from poolhand.stores.postgres.store import PostgresStore
from tests.contract.support import entries, order

HOUR = 3600.0
WALL = 1_700_000_000.0


class World:
    """A server whose clock can be set, and the skew that was recorded for it."""

    def __init__(self) -> None:
        self.true = WALL
        self.ahead = self.skew = 0.0

    def process(self, held_up: float = 0.0) -> Process:
        return Process(self, held_up)


class Process:
    """One process on that server; `held_up` is the time that its own clock has missed."""

    def __init__(self, world: World, held_up: float) -> None:
        self.held_up = held_up
        self._world = world
        self._clock = ServerClock(lambda: world.true - self.held_up)

    def now(self, took: float = 0.0) -> float:
        """Ask for the store's time, in an answer that took so long, until it is right."""
        world = self._world
        while True:
            asked = self._clock.tick()
            wall, skew = world.true + world.ahead, world.skew
            world.true += took
            try:
                return self._clock.now(wall, skew, asked) - WALL
            except ClockStepped as stepped:
                if world.skew == stepped.skew:
                    world.skew += stepped.by


@pytest.mark.parametrize("by", [HOUR, -HOUR, 2 * SLACK])
def test_a_step_is_taken_off_once_for_all(by: float) -> None:
    world = World()
    one, other = world.process(), world.process()
    assert one.now() == other.now() == 0.0
    world.true += 10.0
    world.ahead = by
    assert one.now() == other.now() == world.process().now() == 10.0
    assert world.skew == by
    world.ahead = 0.0
    assert other.now() == one.now() == 10.0
    assert world.skew == 0.0


def test_small_steps_and_clock_drift_are_followed() -> None:
    world = World()
    one = world.process()
    one.now()
    for _ in range(100):
        world.true += 100.0
        world.ahead += SLACK / 2
        one.now()
    assert world.skew == 0.0


def test_a_slow_answer_is_not_mistaken_for_a_clock_step() -> None:
    world = World()
    one = world.process()
    for took in (0.0, 9.0, 0.0, 9.0, 0.1):
        one.now(took)
    assert world.skew == 0.0


def test_a_clock_step_is_detected_even_with_slow_answers() -> None:
    world = World()
    one = world.process()
    one.now(took=1.0)
    world.ahead = HOUR
    one.now(took=1.0)
    assert world.skew == pytest.approx(HOUR, abs=1.0)


def test_a_suspended_process_is_corrected_by_the_others() -> None:
    world = World()
    held_up, other = world.process(), world.process()
    held_up.now()
    other.now()
    world.true += 2 * LONG
    other.now()
    held_up.held_up = LONG
    assert held_up.now() == LONG  # for a moment, until the other process looks
    assert other.now() == 2 * LONG
    assert held_up.now() == other.now() == 2 * LONG
    assert world.skew == 0.0


def test_a_new_process_does_not_undo_a_recorded_clock_step() -> None:
    world = World()
    old = world.process()
    old.now()
    world.true += 2 * LONG
    world.ahead = HOUR
    newcomer = world.process()
    assert newcomer.now() == 2 * LONG + HOUR
    assert old.now() == newcomer.now() == old.now() == 2 * LONG
    assert world.skew == HOUR


# On a server


class Shifted(Runtime):
    """A process whose own clock says that the server's clock was set."""

    ahead = 0.0

    def since_boot(self) -> float:
        return super().since_boot() - self.ahead


@asynccontextmanager
async def opened(url: str, runtime: Runtime) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url, runtime)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def add(store: PostgresStore, id: str) -> None:
    (answer,) = await store.add([JobBatch((order(id, delay=3 * HOUR),))])
    assert entries(answer) == ["accepted"]


async def add_in_a_transaction(store: PostgresStore, id: str) -> None:
    transaction = await store.begin()
    await transaction.execute("SELECT 1", ())
    assert entries(await transaction.add(JobBatch((order(id, delay=9 * HOUR),)))) == ["accepted"]
    await transaction.commit()


async def put(store: PostgresStore, id: str) -> None:
    assert await store.put([Put(id, b"")])


async def promote(store: PostgresStore, id: str) -> None:
    assert not (await store.promote()).moved


@pytest.mark.parametrize("act", [add_in_a_transaction, put, promote])
@pytest.mark.parametrize("ahead", [2 * HOUR, -2 * HOUR], ids=["ahead", "back"])
async def test_the_first_process_to_see_a_clock_step_corrects_the_store_time(
    schema: str, ahead: float, act: Callable[[PostgresStore, str], Awaitable[None]]
) -> None:
    runtime = Shifted()
    async with opened(schema, runtime) as store, opened(schema, Runtime()) as other:
        await add(store, "delayed")
        runtime.ahead = ahead
        await act(store, "seen")
        left = (await other.promote()).next_in
        assert left == pytest.approx(3 * HOUR + ahead, abs=60)
