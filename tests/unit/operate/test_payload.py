"""Payload views: arguments and result of a job, or a description of what cannot be shown."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from poolhand import App, Pool
from poolhand.operate.views import LONGEST_SHOWN, PayloadView, payload_lines
from poolhand.settings import AllowPickle, KeyRing, Wire
from tests.unit.operate.world import World

SECRET = b"a secret of thirty-two bytes ...!"
ADVICE = "--json shows all"


@asynccontextmanager
async def ran(path: Path, *args: Any, **options: Any) -> AsyncIterator[PayloadView]:
    """Return the payload view of a job that has run, by an operator without the keys of the app."""
    app = App(f"sqlite:///{path / 'jobs.db'}", wire=Wire(**options))

    @app.task(name="work", retry=None)
    async def work(what: Any, times: int = 1) -> Any:
        if what == "fail":
            raise ValueError(what)
        return {"did": what}

    async with app, app.worker():
        ticket = await work.submit(*args)
        with suppress(ValueError):
            await ticket
        view = await app.operator().payload(ticket.id)
        assert view is not None
        yield view


async def test_arguments_and_result_are_shown_by_name(tmp_path: Path) -> None:
    async with ran(tmp_path, {"city": "Rome"}, 2) as view:
        assert (view.task, view.arguments) == ("work", {"what": {"city": "Rome"}, "times": 2})
        assert (view.has_result, view.result) == (True, {"did": {"city": "Rome"}})
        assert (view.arguments_note, view.result_note) == (None, None)


async def test_a_job_that_failed_has_arguments_and_no_result(tmp_path: Path) -> None:
    async with ran(tmp_path, "fail") as view:
        assert (view.arguments, view.has_result) == ({"what": "fail"}, False)
        assert payload_lines(view, ADVICE) == ['arguments: {"what":"fail"}']


async def test_signed_or_pickled_values_are_marked_as_such(tmp_path: Path) -> None:
    ring = KeyRing({"k1": SECRET}, current="k1")
    (tmp_path / "signed").mkdir()
    async with ran(tmp_path / "signed", "x", ring=ring) as view:
        assert view.arguments is view.result is None
        assert str(view.arguments_note).startswith("json, signed with the key 'k1', ")
        assert str(view.result_note).endswith("bytes: only an app with that key reads it")
    (tmp_path / "pickled").mkdir()
    options = {"ring": ring, "codec": "pickle", "pickle": AllowPickle()}
    async with ran(tmp_path / "pickled", "x", **options) as view:
        assert str(view.arguments_note).startswith("a pickle, signed with the key 'k1', ")


async def test_unknown_bytes_are_named_and_raise_nothing(world: World) -> None:
    id = await world.add()
    (view,) = [await world.operator.payload(id)]
    assert view is not None
    assert str(view.arguments_note).startswith(f"the call record of job {id} cannot be read")
    assert await world.operator.payload("nothing") is None


async def test_a_closure_has_no_arguments_to_show(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    async with Pool("closures", scope="pipeline", scope_id="one", store=url) as pool:
        ticket = await pool.submit(lambda: 7)
        assert await ticket == 7
        id = ticket.id
    app = App(url)
    async with app:
        view = await app.operator().payload(id)
        assert view is not None
        assert (
            view.arguments_note
            == "a closure: its arguments exist only in the process that submitted it"
        )
        assert view.result == 7


@pytest.mark.parametrize("hostile", ["\x1b[31m", "\u202e", "\x7f"], ids=ascii)
def test_values_are_shown_without_control_sequences(hostile: str) -> None:
    view = PayloadView("id", "task", {"a": hostile}, None, True, hostile, None)
    assert all(line.isprintable() for line in payload_lines(view, ADVICE))
    noted = PayloadView("id", "task", None, hostile, True, None, hostile)
    assert all(line.isprintable() for line in payload_lines(noted, ADVICE))


def test_a_long_value_is_truncated_and_shows_by_how_much() -> None:
    view = PayloadView("id", "task", {"a": "x" * LONGEST_SHOWN}, None, False, None, None)
    cut, note = payload_lines(view, ADVICE)
    assert len(cut) < LONGEST_SHOWN + 50
    assert note == f"(8 of {LONGEST_SHOWN + 8:,} characters are left out; {ADVICE})"
