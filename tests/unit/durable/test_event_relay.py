"""The event relay: subscribers are user code, which never runs on the store thread."""

from __future__ import annotations

import asyncio
import threading

from poolhand import App
from poolhand.durable.connection.event_relay import EventRelay
from poolhand.observe.events import Event, Events, JobSubmitted, StoreTrouble
from poolhand.runtime import Runtime
from poolhand.testing import SeededRuntime
from tests.unit.durable.support import seeded, until, until_later


def trouble(number: int) -> StoreTrouble:
    return StoreTrouble("", "test", str(number))


async def test_a_slow_subscriber_does_not_block_the_emitter() -> None:
    events, proceed = Events(), threading.Event()
    heard: list[str] = []

    def slow(event: Event) -> None:
        assert isinstance(event, StoreTrouble)
        proceed.wait()
        heard.append(event.error)

    events.subscribe(slow)
    relay = EventRelay(Runtime(), events)
    for number in range(5):
        relay.emit(trouble(number))
    assert heard == []
    proceed.set()
    await until(lambda: len(heard) == 5)
    assert heard == ["0", "1", "2", "3", "4"]


def test_without_a_thread_events_are_still_emitted() -> None:
    class Threadless(Runtime):
        def in_thread(self, call: object, name: str) -> None:
            raise RuntimeError("can't start new thread")

    events = Events()
    heard: list[Event] = []
    events.subscribe(heard.append)
    relay = EventRelay(Threadless(), events)
    relay.emit(trouble(1))
    relay.emit(trouble(2))
    assert heard == [trouble(1), trouble(2)]


@seeded
async def test_an_event_emitted_inside_a_subscriber_is_delivered_after_the_current_one(
    runtime: SeededRuntime,
) -> None:
    events = Events()
    heard: list[Event] = []
    relay = EventRelay(runtime, events)

    def answer(event: Event) -> None:
        heard.append(event)
        if event == trouble(1):
            relay.emit(trouble(3))

    events.subscribe(answer)
    relay.emit(trouble(1))
    relay.emit(trouble(2))
    await until_later(lambda: len(heard) == 3, runtime)
    assert heard == [trouble(1), trouble(2), trouble(3)]


def test_a_submit_without_a_loop_emits_its_event_on_the_calling_thread() -> None:
    events = Events()
    threads: list[str] = []

    def hear(event: Event) -> None:
        if isinstance(event, JobSubmitted):
            threads.append(threading.current_thread().name)

    events.subscribe(hear)
    app = App("memory://", events=events)

    @app.task(name="call")
    async def call() -> None: ...

    call.submit_sync()
    assert threads == [threading.current_thread().name]
    asyncio.run(app.close())
