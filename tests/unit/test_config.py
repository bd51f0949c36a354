"""Settings come from one place each, are checked as a whole, and show no secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from poolhand import UsageError
from poolhand.config import SETTINGS, Config, load, masked, person, read, without_secrets


def write(folder: Path, text: str) -> Path:
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    return folder


def origins(config: Config) -> dict[str, tuple[str | None, str]]:
    return {value.name: (value.text, value.origin) for value in config.values()}


def test_nothing_set_is_no_fault(tmp_path: Path) -> None:
    config = read({}, {}, tmp_path)
    assert origins(config) == {"store": (None, "default"), "app": (None, "default")}


def test_the_nearest_place_wins_and_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path, '[tool.poolhand]\nstore = "sqlite:///file.db"\napp = "a.b:c"\n')
    variables = {"POOLHAND_STORE": "sqlite:///variable.db"}
    assert origins(read({}, {}, folder)) == {
        "store": ("sqlite:///file.db", "pyproject.toml [tool.poolhand]"),
        "app": ("a.b:c", "pyproject.toml [tool.poolhand]"),
    }
    by_variable = read({}, variables, folder)
    assert origins(by_variable)["store"] == ("sqlite:///variable.db", "environment POOLHAND_STORE")
    by_flag = read({"store": "memory://", "app": None}, variables, folder)
    assert origins(by_flag)["store"] == ("memory://", "flag --store")
    assert by_flag.store.rank < by_variable.store.rank < by_variable.app.rank


def test_an_empty_variable_is_not_set(tmp_path: Path) -> None:
    assert read({}, {"POOLHAND_APP": ""}, tmp_path).app.text is None


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    folder = write(tmp_path, '[tool.poolhand]\nstroe = "sqlite:///x.db"\nstore = 7\n')
    with pytest.raises(UsageError) as raised:
        read({"app": "no colon"}, {}, folder)
    told = str(raised.value)
    assert "'stroe' in [tool.poolhand] of pyproject.toml is no setting" in told
    assert "did you mean 'store'?" in told
    assert (
        "store=7 in [tool.poolhand] of pyproject.toml is not allowed; it must be a string" in told
    )
    assert "app='no colon' (flag --app) is not allowed; it must be module:attribute" in told


def test_a_name_like_no_setting_gets_the_list(tmp_path: Path) -> None:
    folder = write(tmp_path, '[tool.poolhand]\nzzz = "1"\n')
    with pytest.raises(UsageError, match="there are store, app"):
        read({}, {}, folder)


@pytest.mark.parametrize("text", ["[tool.poolhand", "\x00", "[tool]\npoolhand = 3\n"])
def test_a_file_that_cannot_be_used_is_told(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"pyproject\.toml"):
        read({}, {}, write(tmp_path, text))


def test_a_file_of_others_is_left_alone(tmp_path: Path) -> None:
    folder = write(tmp_path, '[project]\nname = "x"\n[tool.other]\nstore = 1\n')
    assert read({}, {}, folder).store.text is None


@pytest.mark.parametrize(
    ("name", "text"),
    [("store", "agents.db"), ("store", "://x"), ("app", "module"), ("app", ":app"), ("app", "1:a")],
)
def test_what_no_setting_can_be_is_refused(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(UsageError, match=rf"{name}=.* is not allowed; it must be "):
        read({name: text}, {}, tmp_path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("store", "memory://"),
        ("store", "sqlite:////absolute/file.db"),
        ("store", "postgresql://me@host/db"),
        ("app", "agents:app"),
        ("app", "my.agents:make.app"),
    ],
)
def test_what_a_setting_can_be_is_taken(tmp_path: Path, name: str, text: str) -> None:
    assert getattr(read({name: text}, {}, tmp_path), name).text == text


def test_a_variable_that_looks_like_ours_is_named(tmp_path: Path) -> None:
    variables = {"POOLHAND_STOER": "x", "HOME": "/", "POOLHAND_STORE": "memory://"}
    assert read({}, variables, tmp_path).unknown == ("POOLHAND_STOER",)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@host:5432/db", "postgresql://me:***@host:5432/db"),
        ("postgresql://me:se/cr@e:t#@host/db", "postgresql://me:***@host/db"),
        ("postgresql://:secret@host", "postgresql://:***@host"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("postgresql://host:5432/db", "postgresql://host:5432/db"),
        ("postgresql://h/db?sslpassword=secret&x=1", "postgresql://h/db?sslpassword=***&x=1"),
        ("postgresql://h/db?x=1&API_KEY=secret", "postgresql://h/db?x=1&API_KEY=***"),
        ("postgresql://h/db?pass%77ord=secret", "postgresql://h/db?pass%77ord=***"),
        ("postgresql://h/db?password=se@cret", "postgresql://h/db?***"),
        ("postgresql://h/db?password=secret&no word", "postgresql://h/db?***"),
        ("postgresql://me:12?a=secret@h/db", "postgresql://me:***@h/db"),
        ("postgresql://me:12#secret@h/db", "postgresql://me:***@h/db"),
        ("postgresql://me:secret/db", "postgresql://me:***"),
        ("postgresql://me:se/cret", "postgresql://me:***"),
        ("postgresql:/me:secret@h/db", "postgresql:***@h/db"),
        ("postgresql:///db?host=/run/pg", "postgresql:///db?host=/run/pg"),
        ("postgresql://me:secret@[::1]:5432/db", "postgresql://me:***@[::1]:5432/db"),
        ("postgresql://[::1]:5432/db", "postgresql://[::1]:5432/db"),
        ("postgresql://a:1,[::2],b/db?x=1", "postgresql://a:1,[::2],b/db?x=1"),
        (
            "postgresql://me:secret@h/db?listen=postgresql://me:secret@g/db&pooler=transaction",
            "postgresql://me:***@h/db?listen=postgresql://me:***@g/db&pooler=transaction",
        ),
        (
            "postgresql://h/db?listen=postgresql%3A%2F%2Fme%3Asecret%40g%2Fdb",
            "postgresql://h/db?listen=postgresql://me:***@g/db",
        ),
        ("sqlite:////data/a:b@c.db", "sqlite:////data/a:b@c.db"),
        ("memory://", "memory://"),
        ("no url", "no url"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert masked(url) == shown


def test_a_fault_shows_no_secret(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        read({"app": "postgresql://me:secret@host"}, {}, tmp_path)
    assert "secret" not in str(raised.value)
    assert "postgresql://me:***@host" in str(raised.value)


@pytest.mark.parametrize("password", ["secret", "sec\\ret", "sec'ret", "sec\"r'et"])
def test_a_text_is_shown_without_the_secrets_of_urls(password: str) -> None:
    url = f"postgresql://me:{password}@host"
    told = without_secrets(f"store={url!r} or {url} is wrong", [url])
    assert told.count("postgresql://me:***@host") == 2
    assert "ret" not in told


def test_every_setting_has_a_field_and_a_variable(tmp_path: Path) -> None:
    config = read({}, {}, tmp_path)
    assert [value.name for value in config.values()] == [setting.name for setting in SETTINGS]
    assert [setting.variable for setting in SETTINGS] == ["POOLHAND_STORE", "POOLHAND_APP"]


def test_the_settings_of_this_process_are_read_where_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write(tmp_path, '[tool.poolhand]\nstore = "sqlite:///file.db"\n'))
    monkeypatch.delenv("POOLHAND_STORE", raising=False)
    monkeypatch.setenv("POOLHAND_APP", "agents:app")
    config = load(store=None)
    assert (config.store.text, config.app.text) == ("sqlite:///file.db", "agents:app")


def test_somebody_always_sits_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "anna")
    assert person() == "anna"
