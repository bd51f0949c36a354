"""Decorators refuse non-functions, and functions that need an object, with the fix."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from poolhand import App, Session, UsageError, tool
from poolhand.durable.calls.declaration import checked_function

APP: Any = App("memory://")
TOOL: Any = tool


class Library:
    """Functions in the body of a class."""

    def read(self, name: str) -> str:
        return name

    @classmethod
    def make(cls) -> Library:
        return cls()

    @staticmethod
    async def fetch(name: str) -> str:
        return name.upper()

    async def chat(self, session: Session) -> None: ...


async def answer(session: Session) -> None: ...


def plain(self: str) -> str:
    return self


@pytest.mark.parametrize("decorator", ["task", "agent"])
def test_a_text_is_taken_for_a_name_or_a_pool(decorator: str) -> None:
    with pytest.raises(UsageError) as caught:
        getattr(APP, decorator)("research")
    assert caught.value.message == (
        f"@app.{decorator} takes a function; 'research' is a text: to name it write "
        f"@app.{decorator}(name='research'), or to choose its pool "
        f"@app.{decorator}(pool='research')"
    )


def test_a_tool_has_no_pool() -> None:
    with pytest.raises(UsageError, match=r"@tool takes a function; 'x' .* @tool\(name='x'\)") as no:
        TOOL("x")
    assert "pool" not in no.value.message


@pytest.mark.parametrize("value", [5, "", [], object()])
@pytest.mark.parametrize(
    ("decorate", "said"),
    [
        (APP.task, "@app.task"),
        (APP.agent, "@app.agent"),
        (APP.cron("@daily"), "@app.cron(…)"),
        (APP.every(5), "@app.every(…)"),
        (TOOL, "@tool"),
    ],
)
def test_an_object_that_is_not_callable_is_refused_by_the_decorator(
    decorate: Any, said: str, value: Any
) -> None:
    with pytest.raises(UsageError) as caught:
        decorate(value)
    assert caught.value.message.startswith(f"{said} takes a function; ")
    assert f"write {said} above `def` or `async def`" in caught.value.message


def test_a_coroutine_is_refused_and_closed() -> None:
    with pytest.raises(UsageError, match="not a coroutine: give fetch, not fetch"):
        APP.task(Library.fetch("bees"))


@pytest.mark.parametrize(
    ("decorate", "method"),
    [
        (APP.task, Library.read),
        (APP.every(5), Library.read),
        (TOOL, Library.read),
        (APP.agent, Library.chat),
    ],
)
def test_a_method_is_refused_with_the_cure(decorate: Any, method: Any) -> None:
    with pytest.raises(UsageError, match=r"Library\.\w+ is a method, and no 'self' is kept") as no:
        decorate(method)
    assert "a function of the module, or a @staticmethod without 'self'" in no.value.message


def test_a_classmethod_is_refused_with_the_cure() -> None:
    with pytest.raises(UsageError, match=r"a classmethod needs its class, .* or a @staticmethod"):
        APP.task(vars(Library)["make"])


def test_a_staticmethod_is_unwrapped() -> None:
    task = APP.task(vars(Library)["fetch"])
    assert asyncio.run(task("bees")) == "BEES"
    assert asyncio.iscoroutinefunction(task.fn)


@pytest.mark.parametrize("fn", [plain, Library().read, Library.make, Library, len])
def test_a_callable_that_needs_no_instance_is_accepted(fn: Any) -> None:
    assert checked_function(fn, "@app.task") is fn


@pytest.mark.parametrize("decorator", ["task", "agent"])
def test_an_agent_is_registered_once(decorator: str) -> None:
    agent = App("memory://").agent(answer)
    with pytest.raises(UsageError, match=r"is an agent already; .* agent.session\('s-1'\).submit"):
        getattr(APP, decorator)(agent)


@pytest.mark.parametrize("decorator", ["task", "agent"])
def test_a_decorator_used_on_the_app_class_is_refused_with_the_fix(decorator: str) -> None:
    with pytest.raises(
        UsageError, match=rf"make an app first: app = App\(…\), then @app.{decorator}"
    ):
        getattr(App, decorator)(answer)


@pytest.mark.parametrize(
    ("option", "meant"),
    [("tiemout", "timeout"), ("pol", "pool"), ("nmae", "name"), ("queue", "pool")],
)
def test_a_misspelt_option_of_a_task_names_the_decorator(option: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        APP.task(**{option: 5})(plain)
    assert (
        caught.value.message == f"@app.task: {option!r} is not an option; did you mean {meant!r}?"
    )


@pytest.mark.parametrize(("option", "meant"), [("tll", "ttl"), ("upcaster", "upcasters")])
def test_a_misspelt_option_of_an_agent_names_the_decorator(option: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        APP.agent(**{option: 5})(answer)
    assert (
        caught.value.message == f"@app.agent: {option!r} is not an option; did you mean {meant!r}?"
    )


def test_the_error_for_a_with_options_value_names_the_task() -> None:
    task = App("memory://").task(name="read")(plain)
    with pytest.raises(UsageError, match=r"^read.with_options: timeout=0 is not allowed"):
        task.with_options(timeout=0)


@pytest.mark.parametrize("schedule", ["cron", "every"])
def test_a_schedule_decorator_without_arguments_is_refused_with_the_fix(schedule: str) -> None:
    with pytest.raises(
        UsageError, match=rf"@app.{schedule} takes the \w+ first: @app.{schedule}\("
    ):
        getattr(APP, schedule)(plain)


@pytest.mark.parametrize("upcasters", [[1], {1: "x"}, {"1": len}, 5])
def test_upcasters_map_schemas_to_functions(upcasters: Any) -> None:
    with pytest.raises(UsageError, match=r"@app.agent: upcasters=.* map each old schema"):
        APP.agent(upcasters=upcasters)(answer)
