"""Two services with different tasks of one name, in files of one name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from poolhand.app import App
from poolhand.durable.calls.declaration import is_other_file, is_other_release
from poolhand.operate.doctor import examine
from poolhand.operate.store_findings import Finding, Level
from poolhand.stores.open import store_of
from tests.unit.durable.support import connected

SEND = "async def send(to: str) -> str:\n    return answer"
OTHER_SEND = "async def send(to: int, copy: str) -> str:\n    return answer"


def of_file(folder: str, source: str = SEND) -> Callable[..., Any]:
    file = f"srv/{folder}/tasks.py"
    module: dict[str, Any] = {"__name__": "tasks", "__file__": file, "answer": folder}
    exec(source, module)  # noqa: S102 - a module
    found: Callable[..., Any] = module["send"]
    return found


def about(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [one.getMessage() for one in caplog.records if words in one.getMessage()]


async def test_a_job_of_the_same_task_name_in_another_file_is_warned_of_once(
    shared_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop, bank = App(shared_url), App(shared_url)
    in_shop, in_bank = shop.task(of_file("shop")), bank.task(of_file("bank"))
    async with shop, bank, bank.worker(slots=1):
        assert await in_bank.run("a") == "bank"
        assert about(caplog, "tasks.send") == []
        ticket = await in_shop.submit("b")
        assert await ticket == "bank"
        assert await in_shop.run("c") == "bank"
    (line,) = about(caplog, "tasks.send")
    assert line == (
        f"job {ticket.id} was submitted to task 'tasks.send' of the file srv/shop/tasks.py, and "
        "this worker runs it with the task of that name of srv/bank/tasks.py; if these are two "
        "programs, give one of the tasks another name: @app.task(name=…), or use two stores (other "
        "jobs from that file are not logged)"
    )


async def test_a_call_that_does_not_fit_the_task_of_another_file_names_the_file(
    shared_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop, bank = App(shared_url), App(shared_url)
    in_shop, in_bank = shop.task(of_file("shop", OTHER_SEND)), bank.task(of_file("bank"))
    async with shop, bank:
        async with bank.worker(slots=1):
            ticket = await in_shop.submit(1, "d")
            assert await in_bank.run("a") == "bank"
        (line,) = about(caplog, "this worker has another version of its task")
        assert "(submitted to the task of that name of the file srv/shop/tasks.py)" in line
        assert about(caplog, "this worker runs it") == []
        async with shop.worker(slots=1):
            assert await ticket == "shop"


async def test_a_job_of_another_release_of_the_program_is_not_warned_of(
    shared_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = App(shared_url), App(shared_url)
    submitted, _ = old.task(of_file("rel1")), new.task(of_file("rel2"))
    async with old, new, new.worker(slots=1):
        assert await submitted.run("a") == "rel2"
    assert about(caplog, "tasks.send") == []


async def findings_about_tasks(app: App) -> list[Finding]:
    findings = await examine(store_of(app.url, app.core.runtime), app.core.runtime)
    return [finding for finding in findings if finding.check == "tasks"]


async def test_the_doctor_reports_tasks_of_one_name_in_two_files(shared_url: str) -> None:
    shop, bank, again = App(shared_url), App(shared_url), App(shared_url)
    shop.task(of_file("shop"))
    bank.task(of_file("bank"))
    again.task(of_file("bank"))
    async with bank, bank.worker(), again, again.worker():
        await connected(bank, 2)
        assert await findings_about_tasks(bank) == []
        async with shop, shop.worker():
            await connected(shop, 3)
            (finding,) = await findings_about_tasks(bank)
    assert finding.level is Level.WARN
    assert "workers have the task 'tasks.send' from different files: " in finding.text
    assert "srv/shop/tasks.py in " in finding.text
    assert "srv/bank/tasks.py in " in finding.text
    assert "@app.task(name=…)" in (finding.fix or "")


@pytest.mark.parametrize(
    ("name", "own", "other", "expected"),
    [
        ("tasks.send", "srv/a/tasks.py", "srv/b/tasks.py", True),
        ("a.b.tasks.Mail.send", "a/b/tasks.py", "x/b/tasks.py", True),
        ("mail.send", "a/mail/__init__.py", "b/mail/__init__.py", True),
        ("tasks.send", "srv/a/tasks.py", "srv/a/tasks.py", False),
        ("tasks.send", "srv/a/tasks.py", "", False),
        ("send", "srv/a/tasks.py", "srv/b/tasks.py", False),
        ("mail.send", "srv/a/tasks.py", "srv/b/stubs.py", False),
    ],
)
def test_only_names_made_from_the_file_are_compared(
    name: str, own: str, other: str, expected: bool
) -> None:
    assert is_other_file(name, own, other) is expected


@pytest.mark.parametrize(
    ("own", "other", "expected"),
    [
        ("srv/rel1/tasks.py", "srv/rel2/tasks.py", True),
        ("releases/20260131120000/tasks.py", "releases/20260201093000/tasks.py", True),
        ("v1.2.0/proj/tasks.py", "v1.10/proj/tasks.py", True),
        ("srv/3f2a9c1/tasks.py", "srv/b07d41e/tasks.py", True),
        ("srv/shop/tasks.py", "srv/bank/tasks.py", False),
        ("srv/shop1/tasks.py", "srv/bank2/tasks.py", False),
        ("rel1/shop/tasks.py", "rel2/bank/tasks.py", False),
        ("srv/rel1/tasks.py", "rel2/tasks.py", False),
        ("srv/decade/tasks.py", "srv/facade/tasks.py", False),
    ],
)
def test_releases_differ_in_a_number_or_a_hash(own: str, other: str, expected: bool) -> None:
    assert is_other_release(own, other) is expected
