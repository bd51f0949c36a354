"""The app: where tasks, pools and a store meet."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from poolhand import Pool, Retry, Session, UsageError, bounded, fail_fast, fifo, ring_buffer, wait
from poolhand.app import App
from poolhand.durable.calls.call_record import read_call_record, write_call_record
from poolhand.errors import Unsupported
from poolhand.rules.lifecycle import Keep
from poolhand.settings import Autoscale, Wire
from poolhand.views import Status
from poolhand.wire.codec import AllowPickle
from poolhand.wire.envelope import KeyRing


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a new store of each kind."""
    match request.param:
        case "memory":
            return "memory://"
        case "sqlite":
            return f"sqlite:///{tmp_path / 'jobs.db'}"
        case _:
            found: str = request.getfixturevalue("store_schema")
            return found


@pytest.mark.parametrize("url", ["redis://localhost", "amqp://u:secret@host", "file:///x"])
def test_a_store_that_is_not_built_is_unsupported_and_its_password_not_shown(url: str) -> None:
    with pytest.raises(Unsupported, match="is not supported by this version") as caught:
        App(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("postgresql+asyncpg://u:secret@h/db", "write postgresql://…, without a driver: poolhand"),
        ("postgresql+psycopg://u:secret@h/db", "write postgresql://…, without a driver"),
        ("postgres+psycopg2://u:secret@h/db", "write postgresql://…, without a driver"),
        ("pgsql://u:secret@h/db", "write postgresql://…"),
        ("sqllite:///a.db", "did you mean sqlite:///file.db?"),
        ("sqlite3:///a.db", "did you mean sqlite:///file.db?"),
        ("sqllite+aiosqlite:///a.db", "did you mean sqlite:///file.db?"),
        ("postgress://u:secret@h/db", "did you mean postgresql://user@host/database?"),
        ("postgresq://u:secret@h/db", "did you mean postgresql://user@host/database?"),
        ("memroy://", "did you mean memory://?"),
        ("sqlite+aiosqlite:///a.db", "write sqlite:///file.db, without a driver"),
        ("mysql+pymysql://u:secret@h/db", "use memory://, sqlite:///file.db"),
    ],
)
def test_a_url_as_another_library_writes_it_gets_a_hint(url: str, hint: str) -> None:
    with pytest.raises(Unsupported) as caught:
        App(url)
    assert hint in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"store": "memory://"},
            "'store' is not an option; the URL of the store comes first: App(",
        ),
        (
            {"database": "memory://"},
            "'database' is not an option; the URL of the store comes first",
        ),
        ({"stores": "memory://"}, "'stores' is not an option; the URL of the store comes first"),
        ({"DSN": "memory://"}, "'DSN' is not an option; the URL of the store comes first"),
        ({"limit": None}, "'limit' is not an option; write wire=Wire(limits=…), with Wire of"),
        ({"key_ring": None}, "'key_ring' is not an option; write wire=Wire(ring=…), with Wire of"),
        ({"workers": 3}, "'workers' is not an option; there are wire, keep"),
        (
            {"eventz": 1, "x": 2},
            "'eventz' is not an option; did you mean events=?; 'x' is not an option",
        ),
    ],
)
def test_an_unknown_app_option_is_refused_with_a_suggestion(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        App("memory://", **options)
    assert str(caught.value).startswith(f"App: {said}")


def test_the_repr_of_an_app_and_its_tasks_contains_no_control_sequences() -> None:
    app = App("sqlite:///a\x1b[31m.db")
    name = "task\x1b[2J\r\n\x9b1m\u202e"
    task, agent = app.task(name=name)(_nothing), app.agent(name=f"agent {name}")(_turn)
    for shown in map(repr, (app, task, agent)):
        assert shown.isprintable()
        assert "\\x1b[" in shown


async def _nothing() -> None: ...


async def _turn(session: Session) -> None: ...


def test_an_app_is_shown_by_its_url_without_the_password() -> None:
    assert repr(App("memory://")) == "<App memory://>"
    assert repr(App("postgresql://me:secret@h/db")) == "<App postgresql://me:***@h/db>"


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["asyncpg", "greenlet"])
def test_the_error_for_a_server_store_names_the_missing_extra(missing: str) -> None:
    code = f"""
import sys
from poolhand import App
from poolhand.errors import Unsupported
assert not {{"asyncpg", "greenlet"}} & set(sys.modules)
sys.modules[{missing!r}] = None
try:
    App("postgresql://me:secret@h/db")
except Unsupported as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert done.stdout == (
        f"store='postgresql://me:***@h/db' needs {missing}; install poolhand[postgres] "
        "[PH-STO-003]\n"
    ), done.stderr


def test_nothing_happens_before_an_app_is_used(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'jobs.db'}")
    app.pool("chat", max_concurrent=3)

    @app.task(name="call", pool="chat")
    async def call() -> None: ...

    app.worker()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seconds", [0, -1, "week", float("nan"), None], ids=str)
@pytest.mark.parametrize("name", ["results", "dead", "audit"])
def test_retention_times_must_be_seconds_above_zero(name: str, seconds: Any) -> None:
    with pytest.raises(UsageError, match=f"Keep: {name}=.* it must be seconds above 0"):
        App("memory://", keep=Keep(**{name: seconds}))


@pytest.mark.parametrize("most", [0, -1, 1.5, "many"], ids=str)
@pytest.mark.parametrize("name", ["max_results", "max_dead", "max_audit"])
def test_keep_accepts_a_number_or_none(name: str, most: Any) -> None:
    App("memory://", keep=replace(Keep(), **{name: None}))
    with pytest.raises(
        UsageError, match=f"Keep: {name}=.* it must be an int of at least 1 and .* 10.*18, or None"
    ):
        App("memory://", keep=Keep(**{name: most}))


def test_keep_must_be_a_keep_object() -> None:
    with pytest.raises(UsageError, match=r"it must be Keep\(results=…, dead=…\)"):
        App("memory://", keep=7 * 86_400)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite:///:memory:", "use memory://"),
        ("sqlite:///nul\0.db", "no file can have that name"),
        ("sqlite:///sur\ud800.db", "no file can have that name"),
        ("sqlite:///", "names no file"),
        ("jobs.db", "give memory://"),
        ("postgresql:/me:secret@h/db", "give memory://"),
        ("postgresql://me:secret", "no host with a port"),
        ("postgresql://h/db?schema=", "schema='' is not allowed"),
        (5, "store=5 is not allowed"),
        ("x" * 3_000_000, "give memory://"),
        ("sqlite:///mine.db\r", "ends with a blank or a control character: remove it"),
        ("sqlite:///mine.db\n", "ends with a blank or a control character"),
        (" sqlite:///mine.db", "begins or ends with a blank"),
        ("postgresql://me:secret@h/db ", "ends with a blank"),
        ("sqlite:///mine.db\x1b", "ends with a blank or a control character"),
    ],
    ids=[
        "sqlite in memory",
        "nul",
        "surrogate",
        "no file",
        "no scheme",
        "one slash",
        "no host",
        "no schema",
        "number",
        "huge",
        "carriage return",
        "line feed",
        "blank in front",
        "blank behind",
        "escape",
    ],
)
def test_a_url_that_names_no_store_is_refused(url: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        App(url)
    assert len(str(caught.value)) < 500
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", [None, "sqlite:///jobs.db"])
def test_a_relative_file_needs_a_current_folder(
    url: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    said = r"'sqlite:///\w+\.db' is relative to the current folder .* by its full path: sqlite:////"
    with pytest.raises(UsageError, match=said):
        App(url)
    App(f"sqlite:///{tmp_path}/jobs.db")
    App("memory://")


async def test_the_scheme_of_a_url_may_be_in_capitals(tmp_path: Path) -> None:
    async with App(f"SQLite:///{tmp_path / 'jobs.db'}") as app:
        assert await app.ready()
    assert (tmp_path / "jobs.db").exists()
    App("MEMORY://")


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("codec", [], r"codec=\[\] is not allowed"),
        ("limits", 5, r"limits is a int; it must be Limits\(…\)"),
        ("limits", None, "limits is a NoneType"),
        ("ring", "a secret", r"ring is a str; it must be KeyRing\(…\), or None"),
        ("ring", b"", "ring is a bytes"),
        ("pickle", True, r"pickle is a bool; it must be AllowPickle\(\), or None"),
        ("pickle", False, "pickle is a bool"),
        ("pickle", AllowPickle, "pickle is the class AllowPickle"),
    ],
    ids=str,
)
def test_a_wire_option_of_the_wrong_type_is_refused_without_showing_a_secret(
    option: str, value: Any, said: str
) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        Wire(**{option: value})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("runtime", 5, "App: runtime=5 is not allowed"),
        ("events", [], r"App: events=\[\] is not allowed"),
        ("wire", "a secret", r"App: wire is of type str; it must be Wire\(codec=…, limits=…, …\)"),
        ("ring", "a secret", r"'ring' is not an option; write wire=Wire\(ring=…\), with Wire of"),
    ],
    ids=str,
)
def test_an_app_option_of_the_wrong_type_is_refused_without_showing_a_secret(
    option: str, value: Any, said: str
) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        App("memory://", **{option: value})
    assert "secret" not in str(caught.value)


def test_all_wrong_app_options_are_reported_at_once() -> None:
    with pytest.raises(UsageError, match=r"limits is a .*; ring is a .*; pickle is a"):
        App("memory://", wire=Wire(limits=5, ring=5, pickle=5))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [" default", "default ", "default\r\n"])
def test_the_name_of_a_pool_has_no_blanks_at_its_ends(name: str) -> None:
    app = App("memory://")
    with pytest.raises(UsageError, match=r"name=.* without blanks at its ends"):
        app.pool(name)
    with pytest.raises(UsageError, match=r"name=.* without blanks at its ends"):
        Pool(name)
    with pytest.raises(UsageError, match=r"pool=.* without blanks at its ends"):
        app.task(name="call", pool=name)(print)


BAD_NAMES = [5, 0, True, b"x", "", " ", "\ud800", "x" * 1001, [], float("nan"), object]


@pytest.mark.parametrize("name", [None, *BAD_NAMES], ids=lambda name: ascii(name)[:20])
def test_a_pool_has_a_name_that_every_store_can_keep(name: Any) -> None:
    app = App("memory://")
    with pytest.raises(UsageError, match=r"name=.* is not allowed; it must be a non-blank text"):
        app.pool(name)
    with pytest.raises(UsageError, match=r"pool=.* is not allowed; it must be a non-blank text"):

        @app.task(name="call", pool=name)
        def call() -> None: ...


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: ascii(name)[:20])
def test_a_task_has_a_name_that_every_store_can_keep(name: Any) -> None:
    with pytest.raises(
        UsageError, match=r"name=.* is not allowed; it must be a non-blank"
    ) as caught:

        @App("memory://").task(name=name)
        def call() -> None: ...

    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("where", ["bogus", "", 5, [], "\ud800"], ids=ascii)
def test_a_task_reports_where_it_runs(where: Any) -> None:
    with pytest.raises(UsageError, match=r"run_in=.* is not allowed; it must be 'loop', 'thread'"):

        @App("memory://").task(name="call", run_in=where)
        def call() -> None: ...


def test_a_refused_task_is_not_registered() -> None:
    app = App("memory://")
    with pytest.raises(UsageError, match="timeout=-1"):

        @app.task(name="call", pool="reserch", timeout=-1)
        async def call() -> None: ...

    app.pool("research")


@pytest.mark.parametrize(
    "pools",
    [5, True, "research", b"x", [5], ["chat", ""], ["\ud800"], ["x" * 1001], [None]],
    ids=lambda pools: ascii(pools)[:20],
)
def test_a_worker_takes_names_of_pools(pools: Any) -> None:
    with pytest.raises(UsageError, match=r"pools=.* is not allowed; give a list of names of pools"):
        App("memory://").worker(pools=pools)


async def test_an_impossible_job_id_is_not_found_or_refused(url: str) -> None:
    async with App(url) as app:
        for id in ("", "\ud800", "a\0b", "x" * 100_000):
            assert await app.get(id) is None
        odd: Any
        for odd in (None, 5, 2**70, [], b"x"):
            with pytest.raises(UsageError, match="it must be the id of a job"):
                await app.get(odd)


@pytest.mark.parametrize("pools", [["reserch"], ["research", "reserch"]], ids=str)
def test_a_worker_for_an_unused_pool_logs_a_warning(
    caplog: pytest.LogCaptureFixture, pools: list[str]
) -> None:
    app = App("memory://")

    @app.task(name="call", pool="research")
    async def call() -> None: ...

    app.worker(pools=pools)
    assert [record.getMessage() for record in caplog.records] == [
        "worker: pool 'reserch' is not declared and no task uses it; did you mean 'research'?"
    ]
    assert caplog.records[0].levelname == "WARNING"


def test_a_worker_for_pools_that_are_used_or_declared_is_not_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = App("memory://")
    app.pool("declared")

    @app.task(name="call", pool="used")
    async def call() -> None: ...

    app.worker(pools=["declared", "used"])
    app.worker()
    assert caplog.records == []
    app.worker(pools=["zzz\n"])
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == r"worker: pool 'zzz\n' is not declared and no task uses it"


async def test_a_declared_pool_without_a_number_has_no_cap(url: str) -> None:
    app = App(url)
    app.pool("wide", max_per_key=5)
    app.pool("narrow", max_concurrent=1)
    meet = asyncio.Barrier(4)

    @app.task(name="call", pool="wide")
    async def call() -> None:
        await meet.wait()

    async with app, app.worker(slots=4):
        await wait([await call.submit() for _ in range(4)])
        rows = {row.name: row.slots for row in await app.operator().pools()}
    assert (rows["wide"], rows["narrow"]) == (None, 1)


@pytest.mark.parametrize("policy", [bounded(5), ring_buffer(5), fail_fast(), "fail_fast"], ids=str)
def test_a_policy_that_can_be_full_needs_a_cap(policy: Any) -> None:
    app = App("memory://")
    with pytest.raises(UsageError, match=r"pool 'chat': backpressure=.* needs a cap: .*give max_"):
        app.pool("chat", backpressure=policy)
    app.pool("chat", backpressure=policy, max_concurrent=1)
    app.pool("talk", backpressure="unbounded")


def test_an_undeclared_pool_has_no_cap_but_a_near_miss_is_an_error() -> None:
    app = App("memory://")
    app.pool("research")

    @app.task(name="fine", pool="something else")
    async def fine() -> None: ...

    with pytest.raises(UsageError, match="pool 'reserch' is not declared, but 'research' is"):

        @app.task(name="call", pool="reserch")
        async def call() -> None: ...


def test_a_near_miss_is_found_when_the_pool_is_declared_after_the_task() -> None:
    app = App("memory://")

    @app.task(name="call", pool="reserch")
    async def call() -> None: ...

    with pytest.raises(UsageError, match="'reserch' is not declared, but 'research' is"):
        app.pool("research")


async def test_two_pools_that_are_both_declared_may_have_similar_names() -> None:
    app = App("memory://")
    app.pool("chat1")
    app.pool("chat2")

    @app.task(name="call", pool="chat2")
    async def call() -> int:
        return 1

    async with app, app.worker():
        assert await (await call.submit()) == 1


def test_a_pool_is_declared_again_with_the_same_settings_only() -> None:
    app = App("memory://")
    app.pool("research", max_concurrent=3, timeout=60, queue="fifo")
    app.pool("research", max_concurrent=3, timeout=timedelta(minutes=1), queue=fifo())
    with pytest.raises(UsageError) as caught:
        app.pool("research", max_concurrent=5, timeout=60, queue="lifo")
    assert caught.value.message == (
        "pool 'research' is already declared with other settings: max_concurrent is 3 there and 5 "
        "here, queue is fifo there and lifo here; declare it once, or with the same settings each "
        "time"
    )
    with pytest.raises(UsageError, match="max_concurrent is 3 there and None here"):
        app.pool("research", timeout=60, queue="fifo")
    with pytest.raises(UsageError, match=r"retry is None there and Retry\(attempts=2"):
        app.pool("research", max_concurrent=3, timeout=60, queue="fifo", retry=Retry(attempts=2))
    assert app.core.declared.find("research").max_concurrent == 3
    app.pool("free")
    app.pool("free")
    with pytest.raises(UsageError, match="max_concurrent is None there and 1 here"):
        app.pool("free", max_concurrent=1)


def test_all_wrong_pool_options_are_reported_at_once() -> None:
    app = App("memory://")
    with pytest.raises(UsageError) as caught:
        app.pool("chat", max_concurrent=0, timeout=-1, colour="red")  # type: ignore[call-arg]
    assert "max_concurrent=0" in str(caught.value)
    assert "timeout=-1" in str(caught.value)
    assert "'colour' is not an option" in str(caught.value)


def test_a_stored_pool_refuses_autoscale() -> None:
    with pytest.raises(UsageError, match="autoscale goes with a pool in memory"):
        App("memory://").pool("chat", autoscale=Autoscale(min=1, max=5))


async def test_signed_calls_are_run_and_others_are_not() -> None:
    ring = KeyRing({"k1": b"x" * 32}, current="k1")
    other = KeyRing({"k1": b"y" * 32}, current="k1")

    async def call(number: int) -> int:
        return number

    app = App("memory://", wire=Wire(ring=ring))
    task = app.task(name="call")(call)
    async with app, app.worker():
        assert await (await task.submit(5)) == 5
        forged = App("memory://", wire=Wire(ring=other)).task(name="call")(call)
        unsigned = App("memory://").task(name="call")(call)
        for view in (forged, unsigned):
            order = view.request(5)
            (ticket,) = await app.core.submitter.submit([order], task._how())
            job = await wait(ticket)
            assert job.status is Status.FAILED
            assert job.error is not None
            assert job.error.type == "poolhand.errors.BadSignature"


async def test_a_call_that_was_moved_to_another_task_is_not_made() -> None:
    ring = KeyRing({"k1": b"x" * 32}, current="k1")
    app = App("memory://", wire=Wire(ring=ring))
    runs: list[str] = []

    @app.task(name="harmless")
    async def harmless(path: str) -> None:
        runs.append("harmless")

    @app.task(name="delete")
    async def delete(path: str) -> None:
        runs.append("delete")

    async with app, app.worker():
        order = harmless.request("/")
        brief = replace(read_call_record(order.call_record, ""), task="delete")
        moved = replace(order, call_record=write_call_record(brief))
        (ticket,) = await app.core.submitter.submit([moved], delete._how())
        job = await wait(ticket)
    assert runs == []
    assert job.error is not None
    assert job.error.type == "poolhand.errors.BadSignature"
    assert "task, pool, tenant" in job.error.message


async def test_pickle_needs_to_be_enabled_and_signed() -> None:
    with pytest.raises(UsageError, match="codec='pickle' needs"):
        App("memory://", wire=Wire(codec="pickle"))
    with pytest.raises(UsageError, match="codec='yaml' is not allowed"):
        App("memory://", wire=Wire(codec="yaml"))
    ring = KeyRing({"k1": b"x" * 32}, current="k1")
    app = App("memory://", wire=Wire(codec="pickle", ring=ring, pickle=AllowPickle()))

    @app.task(name="call")
    async def call(value: Any) -> Any:
        return value

    async with app, app.worker():
        assert await (await call.submit({1: {2, 3}, "x": 4 + 5j})) == {1: {2, 3}, "x": 4 + 5j}


async def test_ready_reports_whether_the_app_can_accept_a_job(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'no' / 'such' / 'folder' / 'jobs.db'}")
    assert not await app.ready()
    fine = App("memory://")
    assert await fine.ready()
    await fine.close()


async def test_the_same_name_is_the_same_pool_in_every_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    one, two = App(url), App(url)
    one.pool("chat", max_concurrent=1)

    async def call(number: int) -> int:
        return number

    first = one.task(pool="chat", name="call")(call)
    second = two.task(pool="chat", name="call")(call)
    async with one, two, one.worker():
        tickets = [await first.submit(1), await second.submit(2)]
        assert [await ticket for ticket in tickets] == [1, 2]
        assert len({ticket.snapshot().pool_id for ticket in tickets}) == 1
        connection = await two.core.connection()
        (row,) = await connection.thread.ask(connection.store.pools)
        assert row.slots == 1


async def test_an_app_can_be_used_by_many_tasks_of_a_loop_at_once(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'jobs.db'}")

    @app.task(name="call")
    async def call(number: int) -> int:
        return number

    async def one(number: int) -> int:
        return await (await call.submit(number))

    async with app, app.worker(8):
        assert await asyncio.gather(*map(one, range(100))) == list(range(100))


@pytest.mark.parametrize(("url", "warned"), [("sqlite:///a.db", True), ("memory://", False)])
def test_a_task_typed_in_at_the_prompt_logs_a_warning_on_a_shared_store(
    url: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    typed_in: dict[str, Any] = {"__name__": "__main__"}
    exec("def typed(x: int) -> int:\n    return x", typed_in)  # noqa: S102 - as with python -c
    App(url).task(typed_in["typed"])
    said = [line for line in caplog.messages if "task '__main__.typed' was typed in" in line]
    assert len(said) == warned


def test_a_worker_of_no_pools_is_refused() -> None:
    app = App("memory://")
    said = r"pools=\[\] names no pool; leave it out to serve the pools of the app's tasks"
    for make in (app.worker, app.run_worker):
        with pytest.raises(UsageError, match=said):
            make(pools=[])


def test_the_public_attributes_of_an_app_are_what_users_need() -> None:
    shown = [name for name in dir(App("memory://")) if not name.startswith("_")]
    assert shown == [
        "agent",
        "close",
        "core",
        "cron",
        "events",
        "every",
        "farm",
        "find_task",
        "get",
        "get_sync",
        "operator",
        "pool",
        "ready",
        "run_worker",
        "settle_tool",
        "store_origin",
        "submit",
        "submit_sync",
        "task",
        "transaction",
        "url",
        "warm_up",
        "worker",
    ]


async def test_a_relative_file_is_the_one_of_the_folder_in_which_the_app_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    monkeypatch.chdir(one)
    app, pool = (
        App("sqlite:///jobs.db?permissions=660"),
        Pool("own", scope="pipeline", pipeline_id="p"),
    )
    stored = Pool("stored", scope="pipeline", pipeline_id="p", store="sqlite:///pool.db")

    @app.task(name="add")
    async def add(number: int) -> int:
        return number + 1

    for folder in (two, one, two):
        monkeypatch.chdir(folder)
        async with app, app.worker():
            assert await add.run(1) == 2
    async with pool, stored:
        assert await pool.run(len, "x") == await stored.run(len, "x") == 1
    assert app.url == f"sqlite:///{one}/jobs.db?permissions=660"
    assert list(two.iterdir()) == []
    found = {path.name for path in one.rglob("*.db")}
    assert found == {"jobs.db", "pool.db", "p__own.db"}
