"""Types of tasks, from the decorator to the result."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from poolhand import App, Pool, Session, UsageError
from tests.unit.durable.support import stored

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


class Circle(BaseModel):
    kind: Literal["circle"] = "circle"
    radius: float


class Square(BaseModel):
    kind: Literal["square"] = "square"
    side: float


Shape = Annotated[Circle | Square, Field(discriminator="kind")]


@dataclass
class Folder:
    path: Path
    kept: timedelta | None = None


class Agent:
    """Nothing that could be stored."""


async def test_unions_and_paths_round_trip_with_their_type(url: str) -> None:
    app = App(url)
    seen: list[Any] = []

    @app.task(name="look")
    async def look(
        shape: Shape, more: list[Circle | Square | str], folder: Folder, where: Path | str
    ) -> dict[str, Shape | None]:
        seen.extend([shape, more, folder, where])
        return {"first": shape, "none": None}

    more: list[Circle | Square | str] = [Circle(radius=1.0), "none"]
    given = (
        Square(side=2.0),
        more,
        Folder(Path("a"), timedelta(days=1)),
        Path("b"),
    )
    async with app, app.worker():
        found = await (await look.submit(*given))
    assert seen == list(given)
    assert found == {"first": Square(side=2.0), "none": None}


async def test_a_result_that_json_would_change_fails_its_job_permanently(
    url: str,
) -> None:
    app = App(url)
    runs: list[int] = []

    @app.task(name="measure")
    async def measure():  # type: ignore[no-untyped-def]
        runs.append(1)
        return NOON, 5

    async with app, app.worker():
        ticket = await measure.submit()
        with pytest.raises(UsageError) as caught:
            await ticket
        kept = await stored(app, ticket.id)
    assert caught.value.message == (
        "task 'measure': its work is done, but its result is a tuple, which JSON would give back "
        "as a list, and so it was not stored; annotate it: `-> tuple[datetime, int]`, or return "
        "list(result)"
    )
    assert kept.dead
    assert kept.job.error is not None
    assert kept.job.error.message == caught.value.message
    assert runs == [1]


async def test_nothing_is_submitted_with_an_argument_that_json_would_change(url: str) -> None:
    app = App(url)

    @app.task(name="plan")
    async def plan(when, how=None) -> None: ...  # type: ignore[no-untyped-def]

    async with app:
        before = len(await app.operator().jobs())
        for refused in (plan.submit(NOON), plan.submit_many([(1,), (NOON,)])):
            with pytest.raises(
                UsageError, match=r"argument 'when' is a datetime, .*`when: datetime`"
            ):
                await refused
        with pytest.raises(UsageError, match="argument 'how' is a tuple"):
            await plan.submit(1, how=(1, 2))
        assert len(await app.operator().jobs()) == before


def test_a_type_that_can_never_be_stored_is_refused_by_the_decorator() -> None:
    app = App("memory://")
    with pytest.raises(UsageError, match=r"parameter 'agent' is annotated .* an Agent cannot be"):

        @app.task(name="call")
        async def call(agent: Agent) -> None: ...

    with pytest.raises(UsageError, match=r"returns .*Agent, which cannot work"):

        @app.task(name="make")
        async def make() -> Agent: ...  # type: ignore[empty-body]

    with pytest.raises(UsageError, match="parameter 'agent' is annotated"):

        @app.agent(name="talk")
        async def talk(session: Session, agent: Agent) -> None: ...


later = App("memory://")


@later.task
async def call_late(x: LateAgent) -> None: ...


class LateAgent:
    """Defined after the task that takes it, and nothing that could be stored."""


async def test_a_late_type_is_refused_before_a_worker_claims_anything() -> None:
    async with later:
        with pytest.raises(UsageError, match=r"parameter 'x' is annotated .*LateAgent"):
            await later.worker().start()
        with pytest.raises(UsageError, match=r"parameter 'x' is annotated .*LateAgent"):
            await call_late.submit(LateAgent())


async def test_the_state_of_a_turn_that_json_would_change_fails_the_turn() -> None:
    app = App("memory://")

    @app.agent(name="assistant", retry=None)
    async def assistant(session: Session, message: str) -> None:
        session.state["at"] = NOON

    async with app, app.worker():
        with pytest.raises(UsageError, match=r"session 's-1' holds a datetime at state\['at'\]"):
            await (await assistant.session("s-1").submit("hello"))


async def test_a_pool_in_memory_passes_objects_unchanged() -> None:
    async def same(value: Any) -> Any:
        return value

    async with Pool("objects") as pool:
        for value in ((1, 2), {1}, NOON, Agent(), {1: Path("a")}):
            assert await pool.run(same, value) is value
