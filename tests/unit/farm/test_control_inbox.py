"""The record that a farm writes, and the requests that it finds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec.structs import replace

from poolhand.contract import Put
from poolhand.farm.control_inbox import ControlInbox
from poolhand.farm.records import (
    ANSWERS,
    FARMS,
    KEEP,
    REQUESTS,
    WRITE_EVERY,
    ControlAnswer,
    ControlKind,
    ControlRequest,
    FarmRecord,
    FarmState,
    write,
)
from poolhand.testing import SeededRuntime
from tests.unit.durable.support import SharedStore, StoreApp, seeded
from tests.unit.operate.test_farms import FARM, a_farm, a_worker

RECORD = a_farm(FARM, a_worker(1, 200))
REQUEST = ControlRequest("w-1", ControlKind.DRAIN, "ann")


class Board:
    """The documents of a store, as other processes see them."""

    def __init__(self, store: SharedStore, inbox: ControlInbox) -> None:
        self.store = store
        self.inbox = inbox

    async def version(self) -> int:
        """Return how often the record was written."""
        found = await self.store.get_document(f"{FARMS}{FARM}")
        return 0 if found is None else found[1]

    async def record(self) -> FarmRecord | None:
        found = await self.store.get_document(f"{FARMS}{FARM}")
        return None if found is None else found.read(FarmRecord)

    async def request(self, id: str, body: bytes, farm: str = FARM) -> None:
        await self.store.put([Put(f"{REQUESTS}{farm}/{id}", body)])

    async def answer(self, id: str) -> ControlAnswer | None:
        found = await self.store.get_document(f"{ANSWERS}{id}")
        return None if found is None else found.read(ControlAnswer)


@asynccontextmanager
async def a_board(runtime: SeededRuntime) -> AsyncIterator[Board]:
    store = SharedStore(runtime)
    app = StoreApp(store, runtime)
    async with app:
        yield Board(store, ControlInbox(await app.core.connection(), FARM))


@seeded
async def test_an_unchanged_record_is_written_only_to_keep_it(
    runtime: SeededRuntime,
) -> None:
    async with a_board(runtime) as board:
        await board.inbox.publish(RECORD)
        first = await board.version()
        older = replace(RECORD, workers=(replace(RECORD.workers[0], heard=1.5, memory=1),))
        await board.inbox.publish(older)
        assert await board.version() == first
        await asyncio.sleep(WRITE_EVERY)
        await board.inbox.publish(older)
        assert await board.version() > first
        assert await board.record() == older


@seeded
async def test_a_change_is_written_at_once(runtime: SeededRuntime) -> None:
    async with a_board(runtime) as board:
        for changed in (
            replace(RECORD, state=FarmState.STOPPING),
            replace(RECORD, demand=99),
            replace(RECORD, maximum=99),
            replace(RECORD, workers=()),
            replace(RECORD, workers=(replace(RECORD.workers[0], stuck=1),)),
            replace(RECORD, workers=(replace(RECORD.workers[0], heard=2.5),)),
        ):
            await board.inbox.publish(RECORD)
            await board.inbox.publish(changed)
            assert await board.record() == changed


@seeded
async def test_a_record_expires_soon_after_its_farm_and_is_deleted_when_withdrawn(
    runtime: SeededRuntime,
) -> None:
    async with a_board(runtime) as board:
        await board.inbox.publish(RECORD)
        await asyncio.sleep(KEEP + 0.1)
        assert await board.record() is None
        await board.inbox.publish(RECORD)
        await board.inbox.withdraw()
        assert await board.record() is None


@seeded
async def test_a_request_is_handled_once_and_answered(runtime: SeededRuntime) -> None:
    handled: list[ControlRequest] = []

    async def handle(request: ControlRequest) -> ControlAnswer:
        handled.append(request)
        return ControlAnswer(True, f"{request.by} shall have it")

    async with a_board(runtime) as board:
        await board.request("w-1", write(REQUEST))
        await asyncio.gather(board.inbox.handle(handle), board.inbox.handle(handle))
        await board.inbox.handle(handle)
        assert handled == [REQUEST]
        assert await board.answer("w-1") == ControlAnswer(True, "ann shall have it")


@seeded
async def test_requests_to_other_farms_and_undecodable_ones_are_not_handled(
    runtime: SeededRuntime,
) -> None:
    async def handle(request: ControlRequest) -> ControlAnswer:
        raise AssertionError("it is not ours")

    async with a_board(runtime) as board:
        await board.request("w-1", write(REQUEST), "box-ffffff")
        await board.request("w-2", b'{"id": "w-2", "kind": "dance", "by": "ann"}')
        await board.inbox.handle(handle)
        assert await board.answer("w-1") is None
        assert await board.store.get_document(f"{REQUESTS}box-ffffff/w-1") is not None
