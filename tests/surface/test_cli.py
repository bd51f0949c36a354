"""The command line as operators and scripts use it, on real stores."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from typer.testing import CliRunner, Result

from poolhand import App
from poolhand.cli.main import app
from poolhand.contract import Change, Filter
from poolhand.errors import Unsupported
from poolhand.operate.actions import Operator
from poolhand.rules import lifecycle
from poolhand.rules.job import Status
from poolhand.rules.queue.backpressure import Bounded, OnFull
from poolhand.runtime import Runtime
from poolhand.stores.open import store_of
from tests.extent import ALSO_POSTGRES
from tests.unit.operate.world import World, made

T = TypeVar("T")
HOSTILE = "\x1b[31m[red]x\x07\nnew line\u202e"
SPELLED = "\\x1b[31m[red]x\\x07\\nnew line\\u202e"


class Desk:
    """A store, actions on it, and the command line."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._times = 0

    def do(self, act: Callable[[World], Awaitable[T]]) -> T:
        """Run an action on the store."""

        self._times += 1

        async def run() -> T:
            runtime = Runtime()
            ids = f"job-{self._times:03}"
            async with made(store_of(self.url, runtime), runtime, ids) as world:
                return await act(world)

        return asyncio.run(run())

    def add(self, *args: Any, **more: Any) -> str:
        return self.do(lambda world: world.add(*args, **more))

    def dead(self, *args: Any, **more: Any) -> str:
        return self.do(lambda world: world.dead(*args, **more))

    def ask(self, question: Callable[[Operator], Awaitable[T]]) -> T:
        return self.do(lambda world: question(world.operator))

    def run(self, *words: str, code: int = 0) -> Result:
        """Run a command on this store; it must end with that code."""
        return run(*words, "--store", self.url, code=code)

    def json(self, *words: str, code: int = 0) -> Any:
        """Run a command and parse its output, which must be only JSON."""
        return json.loads(self.run(*words, "--json", code=code).stdout)


def run(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, list(words), prog_name="poolhand")
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    assert "Traceback" not in result.stderr
    return result


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change into an empty folder, without settings in the environment."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name in ("POOLHAND_STORE", "POOLHAND_APP"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=["sqlite", ALSO_POSTGRES])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Desk:
    if request.param == "sqlite":
        desk = Desk(f"sqlite:///{tmp_path}/agents.db")
    else:
        desk = Desk(request.getfixturevalue("store_schema"))
    run("migrate", "--store", desk.url)
    return desk


# Jobs


def test_jobs_are_listed_newest_first_in_a_pipe(desk: Desk) -> None:
    first, second = desk.add("fetch", key="k", tenant="t"), desk.add("think", session="s")
    head, *rows = desk.run("jobs", "list").stdout.splitlines()
    assert head.split() == [
        "ID", "POOL", "NAME", "STATUS", "TRIES", "KEY", "SESSION", "TENANT", "SUBMITTED", "NOTE",
    ]  # fmt: skip
    assert [row.split()[:8] for row in rows] == [
        [second, "chat", "think", "queued", "0", "-", "s", "-"],
        [first, "chat", "fetch", "queued", "0", "k", "-", "t"],
    ]
    assert rows[0].endswith("no worker serves pool 'chat'")


def test_an_empty_list_succeeds_and_is_reported_on_stderr(desk: Desk) -> None:
    result = desk.run("jobs", "list")
    assert len(result.stdout.splitlines()) == 1
    assert result.stderr == "no such jobs\n"
    assert desk.json("jobs", "list") == {"jobs": [], "after": None}


def test_a_page_continues_where_the_previous_one_ended(desk: Desk) -> None:
    ids = [desk.add() for _ in range(3)]
    page = desk.json("jobs", "list", "--limit", "2")
    assert [job["id"] for job in page["jobs"]] == ids[:0:-1]
    rest = desk.json("jobs", "list", "--limit", "2", "--after", str(page["after"]))
    assert ([job["id"] for job in rest["jobs"]], rest["after"]) == (ids[:1], None)
    told = desk.run("jobs", "list", "--limit", "2").stderr
    assert told == f"there are more: --after {page['after']}\n"


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--pool", "research"),
        ("--status", "scheduled"),
        ("--tenant", "t"),
        ("--session", "s"),
        ("--key", "k"),
        ("--name", "fetch"),
    ],
)
def test_a_filter_chooses_jobs(desk: Desk, flag: str, value: str) -> None:
    desk.add("other")
    fields = {"tenant": "t", "session": "s", "key": "k"}
    wanted = desk.add("fetch", "research", delay=60.0, **fields)
    desk.add("other")
    page = desk.json("jobs", "list", flag, value)
    assert [job["id"] for job in page["jobs"]] == [wanted]


def test_several_states_may_be_given(desk: Desk) -> None:
    ids = {desk.add(), desk.add(delay=60.0)}
    desk.dead(pool="other")
    page = desk.json("jobs", "list", "--status", "queued", "--status", "scheduled")
    assert {job["id"] for job in page["jobs"]} == ids


def test_a_job_is_shown_with_its_error_and_what_to_do(desk: Desk) -> None:
    id = desk.dead("fetch", key="k", tenant="t", priority=2)
    lines = desk.run("jobs", "show", id).stdout.splitlines()
    facts = dict(line.split("  ", 1) for line in lines if "  " in line and line[0] != " ")
    facts = {name: value.strip() for name, value in facts.items()}
    assert facts["id"] == id
    assert facts["status"] == "failed (dead letter: `poolhand jobs retry` runs it again)"
    assert (facts["key"], facts["tenant"], facts["priority"]) == ("k", "t", "2")
    assert facts["error"] == "ValueError: no fetch"
    assert facts["attempts"] == "1"
    assert "session" not in facts
    assert "    Traceback:" in lines
    shown = desk.json("jobs", "show", id)
    assert (shown["id"], shown["dead"], shown["error"]["type"]) == (id, True, "ValueError")


def test_a_waiting_job_is_shown_with_the_reason(desk: Desk) -> None:
    id = desk.add()
    assert desk.json("jobs", "show", id)["reason"] == "no_worker"
    desk.run("pools", "pause", "chat")
    assert "why           the pool is paused; resume it" in desk.run("jobs", "show", id).stdout


def test_an_unknown_job_is_not_found(desk: Desk) -> None:
    result = desk.run("jobs", "show", "nothing", code=3)
    assert result.stdout == ""
    assert result.stderr == "poolhand: there is no job 'nothing'; see `poolhand jobs list`\n"
    assert desk.run("jobs", "show", "nothing", "--json", code=3).stdout == ""


def test_a_cancel_is_audited_with_the_name_given_by_by(desk: Desk) -> None:
    ids = [desk.add(), desk.add()]
    result = desk.run("jobs", "cancel", *ids, "--by", "anna")
    assert result.stdout.splitlines() == [f"{id}: it is cancelled" for id in ids]
    (line, *_) = desk.json("audit", "--kind", "pool_cancel")["lines"]
    assert (line["by"], line["job"]) == ("anna", ids[0])


def test_the_default_actor_is_the_logged_in_user(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "bert")
    desk.run("jobs", "cancel", desk.add())
    (line,) = desk.json("audit", "--kind", "pool_cancel")["lines"]
    assert line["by"] == "bert"


def test_jobs_that_cannot_be_cancelled_are_reported_and_set_the_exit_code(desk: Desk) -> None:
    waiting, over = desk.add(), desk.dead(pool="other")
    result = desk.run("jobs", "cancel", waiting, over, "nothing", code=1)
    assert result.stdout == f"{waiting}: it is cancelled\n"
    assert result.stderr.splitlines() == [
        f"poolhand: {over}: it had already ended: failed",
        "poolhand: nothing: there is no such job",
    ]
    assert desk.json("jobs", "cancel", over, code=4)[0]["reason"] == "over"
    desk.run("jobs", "cancel", "nothing", code=3)


def test_a_failed_job_runs_again_as_a_new_one(desk: Desk) -> None:
    old = desk.dead("fetch")
    (answer,) = desk.json("jobs", "retry", old, "--by", "anna")
    assert answer["done"]
    new = desk.json("jobs", "show", answer["new_id"])
    assert (new["name"], new["status"], new["submitted_by"]) == ("fetch", "queued", "anna")
    again = desk.run("jobs", "retry", old, code=4)
    assert again.stderr == (
        f"poolhand: {old}: it was already retried; retry the job that replaced it\n"
    )
    desk.run("jobs", "retry", "nothing", code=3)


# Dead letters


def test_dead_letters_are_failed_jobs_that_were_not_rerun(desk: Desk) -> None:
    rerun, dead = desk.dead(), desk.dead("fetch")
    desk.add()
    desk.run("dead", "retry", rerun)
    page = desk.json("dead", "list")
    assert [job["id"] for job in page["jobs"]] == [dead]
    assert desk.json("dead", "list", "--name", "other")["jobs"] == []
    _, row = desk.run("dead", "list").stdout.splitlines()
    assert row.endswith("ValueError: no fetch")


def test_all_dead_letters_of_a_filter_run_again(desk: Desk) -> None:
    for name in ("fetch", "fetch", "think"):
        desk.dead(name)
    result = desk.run("dead", "retry", "--all", "--name", "fetch")
    assert result.stdout == "2 retried, 0 not\n"
    assert result.stderr == "retrying: 2/2, 0 not done\n"
    assert desk.json("dead", "retry", "--all") == {"done": 1, "not_done": 0, "answers": []}
    assert desk.json("dead", "list")["jobs"] == []


def test_a_retry_refused_by_a_full_pool_is_reported(desk: Desk) -> None:
    async def crowd(world: World) -> list[str]:
        await world.declare("p", slots=1, backpressure=Bounded(2, OnFull.FAIL_SUBMITTER))
        return [await world.dead(pool="p") for _ in range(3)]

    ids = desk.do(crowd)
    some = desk.run("dead", "retry", "--all", code=1)
    assert some.stdout == "2 retried, 1 not\n"
    assert f"poolhand: {ids[2]}: pool 'p' is full (0 running, 2 waiting, " in some.stderr
    assert desk.run("dead", "retry", "--all", code=4).stdout == "0 retried, 1 not\n"
    assert desk.json("dead", "retry", ids[2], code=4)[0]["reason"] == "full"


@pytest.mark.parametrize("words", [[], ["--pool", "p"], ["j-1", "--all"], ["j-1", "--pool", "p"]])
def test_a_retry_without_ids_or_all_is_refused(desk: Desk, words: list[str]) -> None:
    result = desk.run("dead", "retry", *words, code=2)
    assert result.stderr == "poolhand: give the ids of jobs, or --all with or without filters\n"


# Pools


def test_pools_are_listed_with_their_rules_and_counts(desk: Desk) -> None:
    assert (
        desk.run("pools", "list").stderr
        == "no pools yet; they appear when an app first submits a job or starts a worker\n"
    )
    assert desk.json("pools", "list") == []
    desk.do(lambda world: world.declare("p", slots=2))
    desk.add(pool="p")
    desk.add(pool="p", delay=60.0)
    _, row = desk.run("pools", "list").stdout.splitlines()
    assert row.split() == ["p", "open", "2", "0", "1", "0", "1", "0", "priority", "unbounded"]
    (pool,) = desk.json("pools", "list")
    assert (pool["name"], pool["slots"], pool["queued"]) == ("p", 2, 1)


def test_a_pool_is_paused_and_resumed(desk: Desk) -> None:
    desk.add()
    assert desk.run("pools", "pause", "chat", "--by", "anna").stdout.splitlines()[1].split()[
        :2
    ] == [
        "chat",
        "paused",
    ]
    assert desk.do(lambda world: world.claim()) == []
    assert desk.json("pools", "resume", "chat")["paused"] is False
    assert len(desk.do(lambda world: world.claim())) == 1
    kinds = [line["kind"] for line in desk.json("audit", "--kind", "pool_")["lines"]]
    assert [kind for kind in kinds if kind in ("pool_pause", "pool_resume")] == [
        "pool_pause",
        "pool_resume",
    ]


def test_a_pool_stays_resized_until_it_is_reset_to_its_declaration(desk: Desk) -> None:
    desk.do(lambda world: world.declare("p", slots=2))
    assert desk.json("pools", "resize", "p", "7")["slots"] == 7
    assert "7 (declared: 2)" in desk.run("pools", "list").stdout
    assert desk.json("pools", "resize", "p", "--declared")["slots"] == 2


@pytest.mark.parametrize("words", [[], ["3", "--declared"], ["0"], ["many"]])
def test_an_invalid_size_is_a_usage_error(desk: Desk, words: list[str]) -> None:
    desk.add()
    desk.run("pools", "resize", "chat", *words, code=2)


@pytest.mark.parametrize("words", [["pause"], ["resume"], ["resize"]])
def test_an_unknown_pool_is_not_found(desk: Desk, words: list[str]) -> None:
    desk.add(pool="research")
    slots = ["3"] if words == ["resize"] else []
    near = desk.run("pools", *words, "reserch", *slots, code=3)
    assert near.stderr == "poolhand: there is no pool 'reserch'; did you mean 'research'?\n"
    far = desk.run("pools", *words, "zzz", *slots, code=3)
    assert far.stderr == "poolhand: there is no pool 'zzz'; see `poolhand pools list`\n"


@pytest.mark.parametrize(
    "words", [["dead", "retry"], ["dead", "drop"], ["jobs", "cancel"]], ids=" ".join
)
def test_no_job_is_changed_when_the_pool_is_unknown(desk: Desk, words: list[str]) -> None:
    desk.dead(pool="research")
    yes = [] if words == ["dead", "retry"] else ["--yes"]
    slip = desk.run(*words, "--all", *yes, "--pool", "reserch", code=3)
    assert slip.stderr == "poolhand: there is no pool 'reserch'; did you mean 'research'?\n"
    assert slip.stdout == ""


@pytest.mark.parametrize("words", [["jobs", "list"], ["dead", "list"]], ids=" ".join)
def test_a_filter_by_an_unknown_pool_warns_with_a_suggestion(desk: Desk, words: list[str]) -> None:
    desk.dead(pool="research")
    slip = desk.run(*words, "--pool", "reserch")
    hint = "poolhand: there is no pool 'reserch'; did you mean 'research'?\n"
    assert slip.stderr.startswith(hint)
    assert desk.run(*words, "--pool", "reserch", "--json").stderr == hint
    assert "there is no pool" not in desk.run(*words, "--pool", "research").stderr


# Audit


def test_the_audit_log_shows_its_newest_lines_or_continues_after_a_number(desk: Desk) -> None:
    ids = [desk.add() for _ in range(5)]
    last = desk.json("audit", "--limit", "2")
    assert [line["job"] for line in last["lines"]] == ids[3:]
    assert last["after"] == 5
    first = desk.json("audit", "--after", "0", "--limit", "2")
    assert [line["job"] for line in first["lines"]] == ids[:2]
    assert desk.json("audit", "--after", "5") == {"lines": [], "after": 5}
    assert desk.run("audit", "--after", "5").stderr == "no such lines\n"
    _, row = desk.run("audit", "--limit", "1").stdout.splitlines()
    assert row.split()[0] == "5"
    assert f"pool_submit  chat  {ids[4]}  user  priority 0" in row


# Text of others


def test_user_text_is_escaped(desk: Desk) -> None:
    id = desk.dead(HOSTILE, HOSTILE, key=HOSTILE, session=HOSTILE, tenant=HOSTILE)
    desk.add(pool=HOSTILE)
    desk.run("pools", "pause", HOSTILE)
    for words in (
        ["jobs", "list"],
        ["jobs", "show", id],
        ["dead", "list"],
        ["pools", "list"],
        ["audit"],
        ["doctor"],
    ):
        result = CliRunner().invoke(app, [*words, "--store", desk.url])
        assert SPELLED in result.stdout
        for line in result.stdout.splitlines():
            assert line.isprintable(), words


def test_hostile_ids_and_names_are_shown_as_text_in_errors(desk: Desk) -> None:
    for words in (
        ["jobs", "show", HOSTILE],
        ["jobs", "cancel", HOSTILE],
        ["jobs", "retry", HOSTILE],
        ["pools", "pause", HOSTILE],
    ):
        told = desk.run(*words, code=3).stderr
        assert told.count("\n") == 1
        assert told.strip().isprintable()


def test_json_of_hostile_text_is_whole(desk: Desk) -> None:
    desk.add(HOSTILE, key=HOSTILE)
    result = desk.run("jobs", "list", "--json")
    (job,) = json.loads(result.stdout)["jobs"]
    assert (job["name"], job["key"]) == (HOSTILE, HOSTILE)
    assert result.stdout.replace("\n", "").isprintable()


# Commands do not change what an operator left


def test_operator_actions_are_stored_in_the_file(desk: Desk) -> None:
    old = desk.dead()
    desk.run("jobs", "retry", old)
    desk.run("pools", "resize", "chat", "4")
    assert desk.ask(lambda operator: operator.count(Filter())) == {
        Status.FAILED: 1,
        Status.QUEUED: 1,
    }
    (pool,) = desk.ask(lambda operator: operator.pools())
    assert (pool.slots, pool.resized) == (4, True)


def test_dead_letters_are_exported_with_their_calls_and_dropped(desk: Desk) -> None:
    one, two = desk.dead("fetch"), desk.dead("other")
    lines = desk.run("dead", "export", "--name", "fetch").stdout.splitlines()
    (letter,) = [json.loads(line) for line in lines]
    assert (letter["job"]["id"], letter["job"]["error"]["type"]) == (one, "ValueError")
    assert set(letter) == {"job", "call", "payload"}
    assert desk.run("dead", "drop", one).exit_code == 0
    assert [job["id"] for job in desk.json("dead", "list")["jobs"]] == [two]
    again = desk.run("dead", "drop", one, code=3)
    assert "there is no such job" in again.stderr
    refused = desk.run("dead", "drop", "--all", code=2)
    assert "--all --yes" in refused.stderr
    assert "1 dropped, 0 not" in desk.run("dead", "drop", "--all", "--yes").stdout
    assert desk.json("dead", "list")["jobs"] == []


def test_a_job_that_is_not_a_dead_letter_is_not_dropped(desk: Desk) -> None:
    waiting = desk.add()
    result = desk.run("dead", "drop", waiting, code=4)
    assert "it is not a dead letter: queued" in result.stderr
    assert desk.json("jobs", "show", waiting)["status"] == "queued"


def test_commands_that_read_a_store_warn_about_a_misspelt_variable(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each process warns once of a variable, and all stores are tested in this one.
    name = f"POOLHAND_STOR_{desk.url.partition(':')[0].upper()}"
    monkeypatch.setenv(name, "sqlite:///x.db")
    told = desk.run("jobs", "list").stderr
    assert told.count(f"poolhand: {name} is not a variable of poolhand and has no effect; ") == 1


def test_an_invalid_store_from_the_environment_is_reported_with_its_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("POOLHAND_STORE", "sqlte:///x.db")
    said = "environment POOLHAND_STORE: store='sqlte:///x.db' is not supported by this version"
    assert said in run("jobs", "list", code=2).stderr
    with pytest.raises(Unsupported, match=f"^{said}"):
        App()


def test_an_id_prefix_that_is_too_short_is_refused_with_the_minimum_length(desk: Desk) -> None:
    desk.add(id="1a-long-id")
    for words in (("jobs", "show"), ("jobs", "cancel")):
        told = desk.run(*words, "1a", code=2).stderr
        assert "id '1a' is too short; give at least 4 characters" in told


def test_work_names_its_argument_when_that_is_no_app() -> None:
    told = run("work", "a", code=2).stderr
    assert "MODULE:APP='a' is not allowed; it must be module:attribute" in told
    assert "--app" not in told


@pytest.mark.parametrize(
    ("given", "meant"),
    [("a", "a:app"), ("a.py", "a:app"), ("./src/a.py:own", "src.a:own"), ("a b", None)],
)
def test_work_explains_how_to_name_the_app_of_a_file_or_module(
    given: str, meant: str | None
) -> None:
    told = run("work", given, code=2).stderr
    assert ("did you mean" in told) is (meant is not None)
    assert f"; did you mean {meant}?" in told or meant is None


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("good:app:x", "good:app"),
        ("good.app", "good:app"),
        ("good/app", "good:app"),
        ("good.py:app", "good:app"),
        ("inner/good", "inner.good:app"),
        ("inner.good.own", "inner.good:own"),
    ],
)
def test_work_names_an_app_of_a_module_that_exists(
    given: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inner").mkdir()
    for folder in (tmp_path, tmp_path / "inner"):
        (folder / "good.py").write_text("", encoding="utf-8")
    told = run("work", given, code=2).stderr
    assert f"; did you mean {meant}?" in told


@pytest.mark.parametrize("words", [("--slots", "5"), ("--slots=5",)])
def test_work_names_the_option_that_another_name_means(words: tuple[str, ...]) -> None:
    told = run("work", "a:app", *words, code=2).stderr
    assert "No such option: --slots Did you mean --concurrency?" in told


def test_an_audit_of_an_unknown_kind_names_those_that_exist(desk: Desk) -> None:
    result = desk.run("audit", "--kind", "cancel", code=2)
    assert "there is no kind 'cancel'; there are pool_submit, " in result.stderr
    assert desk.run("audit", "--kind", "farm_").stderr == "no such lines\n"


def test_jobs_that_were_set_aside_are_named_beside_queued_ones(desk: Desk) -> None:
    desk.add(pool="chat")

    async def set_aside(world: World) -> None:
        (claim,) = await world.claim()
        job = lifecycle.set_aside(claim.job, "task:gone")
        replaced = await world.store.replace([Change(job, claim.token)])
        assert replaced.made == (True,)

    desk.do(set_aside)
    desk.add(pool="chat")
    text = "and 1 job set aside: 1 for task:gone (list them with --status scheduled)"
    for options in ((), ("--pool", "chat")):
        assert text in desk.run("jobs", "list", "--status", "queued", *options).stdout
    assert "set aside" not in desk.run("jobs", "list", "--status", "running").stdout
    assert "task:gone" in desk.run("jobs", "list", "--status", "scheduled", "--json").stdout
