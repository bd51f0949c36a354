"""The scope of a pool: where it is kept, and that pools of different scopes are separate."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from poolhand import App, Pool, PoolhandError, UsageError, list_pools
from poolhand.pool.scope import Scope, take_scope
from poolhand.settings import Autoscale

SERVER = "postgresql://me:hunter2@db.example:5432/jobs"
LOGIN = "hunter2"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder without settings."""
    monkeypatch.delenv("POOLHAND_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shared(name: str | None = "research", **options: Any) -> Pool:
    return Pool(name, **{"scope": "tenant", "scope_id": "acme", "store": SERVER, **options})


@pytest.mark.parametrize("scope", ["tenant", "org"])
@pytest.mark.parametrize("scope_id", [None, "acme"])
def test_without_a_server_the_error_names_what_to_configure(
    scope: str, scope_id: str | None
) -> None:
    with pytest.raises(UsageError) as caught:
        Pool("research", scope=scope, scope_id=scope_id)
    text = str(caught.value)
    for part in (f"scope={scope!r}", "host-managed", "store='postgresql://", "POOLHAND_STORE"):
        assert part in text
    assert ("needs scope_id=" in text) == (scope_id is None)


@pytest.mark.parametrize("store", ["sqlite:///jobs.db", "memory://", "SQLite:////tmp/jobs.db"])
def test_a_single_machine_store_is_refused_as_a_server(store: str, folder: Path) -> None:
    with pytest.raises(UsageError) as caught:
        shared(store=store)
    for part in ("host-managed", repr(store), "POOLHAND_STORE", "scope='pipeline'"):
        assert part in str(caught.value)
    assert list(folder.iterdir()) == []


def test_the_store_may_be_that_of_the_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POOLHAND_STORE", "postgresql://db.example/one")
    assert "in postgresql://db.example/one>" in repr(shared(store=None))
    assert "in postgresql://db.example:5432/two>" in repr(
        shared(store="postgresql://db.example:5432/two")
    )
    monkeypatch.delenv("POOLHAND_STORE")
    settings = '[tool.poolhand]\nstore = "postgresql://db.example/three"\n'
    (folder / "pyproject.toml").write_text(settings)
    assert "in postgresql://db.example/three>" in repr(shared(store=None))
    # A pool in a file of its own ignores that setting.
    assert "in sqlite:///" in repr(Pool("book", scope="pipeline", scope_id="bees"))


def test_a_configured_store_of_one_machine_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOLHAND_STORE", "sqlite:///agents.db")
    with pytest.raises(UsageError, match=r"host-managed.*'sqlite:///agents\.db'"):
        shared(store=None)


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        ({"scope_id": " "}, ["scope_id=' '", "non-blank"]),
        ({"scope_id": "a\0b"}, ["scope_id='a\\x00b'", "non-blank"]),
        ({"pipeline_id": "globex"}, ["scope_id='acme' and pipeline_id='globex' disagree"]),
        ({"dir": "pools"}, ["dir='pools'", "leave it out"]),
        ({"store": "jobs"}, ["store='jobs'", "postgresql://"]),
        ({"store": 5}, ["store=5", "postgresql://"]),
        ({"store": "mysql://x/y"}, ["not supported"]),
        ({"autoscale": Autoscale()}, ["autoscale=", "in memory"]),
        ({"name": None}, ["name=None", "non-blank"]),
        ({"name": "x" * 990}, ["name='xxx", "at most 1,000"]),
        ({"scope_id": "/" * 334}, ["name='research'", "at most 1,000"]),
    ],
    ids=lambda value: ascii(value)[:50],
)
def test_invalid_scope_options_are_refused(options: dict[str, Any], texts: list[str]) -> None:
    with pytest.raises(PoolhandError) as caught:
        shared(**options)
    for text in texts:
        assert text in str(caught.value)
    assert list_pools() == []


@pytest.mark.parametrize(
    "options",
    [
        {"store": "postgresql:/me:hunter2@db.example/jobs"},
        {"scope": "session"},
        {"scope": "pipeline", "store": "postgresql:me:hunter2@db.example/jobs"},
        {"scope": "org", "scope_id": None},
        {"store": "mysql://me:hunter2@db.example/jobs"},
    ],
    ids=["no URL", "in memory", "no URL of a pipeline", "no id", "no store of ours"],
)
def test_no_error_shows_a_password(options: dict[str, Any]) -> None:
    with pytest.raises(PoolhandError) as caught:
        shared(**options)
    assert LOGIN not in str(caught.value)


def test_a_pool_shows_no_password(folder: Path) -> None:
    pool = shared()
    assert "db.example:5432/jobs" in repr(pool)
    assert LOGIN not in repr(pool) + repr(pool._config)


IDS = ["a", "b", "a/b", "a%2Fb", "%", "%25", "a/", "/", "ä", "tenant/a"]
WHOSE = [(kind, id, name) for kind in ("tenant", "org", "pipeline") for id in IDS for name in IDS]


def test_pools_of_different_scopes_never_share_a_stored_name() -> None:
    names = {Scope(kind, id, SERVER).stored_name(name) for kind, id, name in WHOSE}
    assert len(names) == len(WHOSE)
    assert "tenant/a/b" in names


def test_the_id_of_a_pool_contains_its_scope_and_is_the_same_everywhere() -> None:
    pools = [shared(), shared(scope_id="globex"), shared(scope="org"), shared("reviews")]
    for one, other in combinations(pools, 2):
        assert one.id != other.id
    assert shared().id == pools[0].id == shared(store="postgresql://other.example/x").id


def test_a_pool_is_called_by_its_plain_name_here_and_its_full_one_there() -> None:
    pool = shared(scope_id="a/b")
    assert pool.name == "research"
    assert "'research' as 'tenant/a%2Fb/research'" in repr(pool)
    assert pool.known_as == "tenant/a%2Fb/research"


def test_a_file_of_its_own_needs_no_more_than_a_plain_name() -> None:
    assert Scope("pipeline", "night").stored_name("book") == "book"
    assert Scope("pipeline", "night", "sqlite:///x.db").stored_name("book") == "pipeline/night/book"


def test_scope_options_are_removed_from_the_given_options() -> None:
    given = {"scope": "org", "pipeline_id": "acme", "store": SERVER, "timeout": 5}
    assert take_scope(given) == (Scope("org", "acme", SERVER), [])
    assert given == {"timeout": 5}


@pytest.mark.parametrize("option", ["scope", "scope_id", "pipeline_id", "store", "dir"])
def test_a_pool_of_an_app_has_no_scope_of_its_own(option: str) -> None:
    options: Any = {option: "tenant"}
    with pytest.raises(UsageError, match=f"'research': {option} goes with Pool"):
        App("memory://").pool("research", **options)
