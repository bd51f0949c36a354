"""Settings: one source each, checked as a whole, without secrets in the output."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from poolhand import App, UsageError
from poolhand.config import (
    Config,
    load,
    load_app_store,
    load_store,
    load_timezone,
    located,
    masked,
    person,
    read,
    unknown_variable,
    without_secrets,
)
from poolhand.rules.scaling.worker_count import FarmSettings
from poolhand.setting_table import FARM, SETTINGS, Plain


def write(folder: Path, text: str) -> Path:
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    return folder


def origins(config: Config) -> dict[str, tuple[str | None, str]]:
    return {value.name: (value.text, value.origin) for value in config.values()}


def test_empty_settings_are_valid(tmp_path: Path) -> None:
    config = read({}, {}, tmp_path)
    assert {origin for _, origin in origins(config).values()} == {"default"}
    assert config.farm == FarmSettings()
    assert origins(config)["heartbeat_interval_s"] == ("1", "default")
    assert config.store.is_default
    assert config.store.text == "sqlite:///poolhand.db"
    assert (config.app.text, config.loglevel) == (None, "info")


def test_the_nearest_place_wins_and_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path, '[tool.poolhand]\nstore = "sqlite:///file.db"\napp = "a.b:c"\n')
    variables = {"POOLHAND_STORE": "sqlite:///variable.db"}
    by_file = origins(read({}, {}, folder))
    assert by_file["store"] == ("sqlite:///file.db", "pyproject.toml [tool.poolhand]")
    assert by_file["app"] == ("a.b:c", "pyproject.toml [tool.poolhand]")
    by_variable = read({}, variables, folder)
    assert origins(by_variable)["store"] == ("sqlite:///variable.db", "environment POOLHAND_STORE")
    by_flag = read({"store": "memory://", "app": None}, variables, folder)
    assert origins(by_flag)["store"] == ("memory://", "flag --store")
    assert by_flag.store.rank < by_variable.store.rank < by_variable.app.rank


def test_an_empty_variable_counts_as_unset(tmp_path: Path) -> None:
    assert read({}, {"POOLHAND_APP": ""}, tmp_path).app.text is None


def test_all_invalid_settings_are_reported_at_once(tmp_path: Path) -> None:
    folder = write(tmp_path, '[tool.poolhand]\nstroe = "sqlite:///x.db"\nstore = 7\n')
    with pytest.raises(UsageError) as raised:
        read({"app": "no colon"}, {}, folder)
    told = str(raised.value)
    assert "'stroe' in [tool.poolhand] of pyproject.toml is not a setting" in told
    assert "did you mean 'store'?" in told
    assert (
        "store=7 in [tool.poolhand] of pyproject.toml is not allowed; it must be a string" in told
    )
    assert "app='no colon' (flag --app) is not allowed; it must be module:attribute" in told


def test_an_unknown_setting_without_a_near_match_gets_the_full_list(tmp_path: Path) -> None:
    folder = write(tmp_path, '[tool.poolhand]\nzzz = "1"\n')
    with pytest.raises(UsageError, match="there are store, app"):
        read({}, {}, folder)


@pytest.mark.parametrize("text", ["[tool.poolhand", "\x00", "[tool]\npoolhand = 3\n"])
def test_an_unreadable_settings_file_is_reported(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"pyproject\.toml"):
        read({}, {}, write(tmp_path, text))


def test_a_pyproject_without_poolhand_settings_is_ignored(tmp_path: Path) -> None:
    folder = write(tmp_path, '[project]\nname = "x"\n[tool.other]\nstore = 1\n')
    assert read({}, {}, folder).store.is_default


@pytest.mark.parametrize(
    ("name", "text"),
    [("store", "agents.db"), ("store", "://x"), ("app", "module"), ("app", ":app"), ("app", "1:a")],
)
def test_invalid_setting_values_are_refused(tmp_path: Path, name: str, text: str) -> None:
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
def test_valid_setting_values_are_accepted(tmp_path: Path, name: str, text: str) -> None:
    assert getattr(read({name: text}, {}, tmp_path), name).text == text


def test_an_unknown_variable_with_our_prefix_is_reported(tmp_path: Path) -> None:
    variables = {"POOLHAND_STOER": "x", "HOME": "/", "POOLHAND_STORE": "memory://"}
    assert read({}, variables, tmp_path).unknown == ("POOLHAND_STOER",)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("POOLHAND_MAX_WORKRES", "did you mean POOLHAND_MAX_WORKERS?"),
        ("POOLHAND_STOER", "did you mean POOLHAND_STORE?"),
        ("POOLHAND_URL", "did you mean POOLHAND_STORE?"),
        ("POOLHAND_DATABASE", "did you mean POOLHAND_STORE?"),
        ("POOLHAND_ZZZ", "see `poolhand config`"),
        ("POOLHAND_", "see `poolhand config`"),
    ],
)
def test_a_misspelt_variable_is_reported_with_the_nearest_one(name: str, hint: str) -> None:
    assert unknown_variable(name).endswith(f"has no effect; {hint}")


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


def test_a_settings_error_shows_no_secret(tmp_path: Path) -> None:
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


def test_every_setting_is_listed_and_has_a_variable(tmp_path: Path) -> None:
    config = read({}, {}, tmp_path)
    assert [value.name for value in config.values()] == [setting.name for setting in SETTINGS]
    assert [setting.variable for setting in SETTINGS[:2]] == ["POOLHAND_STORE", "POOLHAND_APP"]


def test_settings_are_read_from_the_working_directory_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write(tmp_path, '[tool.poolhand]\nstore = "sqlite:///file.db"\n'))
    monkeypatch.delenv("POOLHAND_STORE", raising=False)
    monkeypatch.setenv("POOLHAND_APP", "agents:app")
    config = load(store=None)
    assert (config.store.text, config.app.text) == ("sqlite:///file.db", "agents:app")


# The farm

FIELDS = {field.name: field for field in msgspec.structs.fields(FarmSettings)}
OTHERS: dict[str, Plain] = {
    "min_workers": 3,
    "max_workers": 40,
    "prefetch_per_worker": 5,
    "scale_up_batch_size": 4,
    "scale_down_batch_size": 6,
    "scale_check_interval_s": 0.25,
    "scale_up_wait_s": 7.0,
    "scale_down_cooldown_s": 8.0,
    "worker_shutdown_grace_s": 90.0,
    "heartbeat_interval_s": 2.5,
    "task_history_max": 0,
    "max_jobs_per_worker": 1_000,
    "max_memory_mb_per_worker": 512,
    "soft_timeout_s": 10.0,
    "hard_timeout_s": 60.0,
    "hard_exit_after_s": 11.0,
    "loop_blocked_limit_s": 12.0,
    "timezone": "Europe/Berlin",
    "external": True,
    "surge": 3,
}


def in_toml(value: Plain) -> str:
    return msgspec.json.encode(value).decode()


def test_every_setting_of_a_farm_can_be_set() -> None:
    assert {setting.name for setting in FARM} == FIELDS.keys() == OTHERS.keys()
    assert all(value != FIELDS[name].default for name, value in OTHERS.items())


@pytest.mark.parametrize("prefix", ["POOLHAND_", ""])
def test_a_farm_is_set_by_variables_with_and_without_our_prefix(
    tmp_path: Path, prefix: str
) -> None:
    variables = {f"{prefix}{name.upper()}": str(value) for name, value in OTHERS.items()}
    config = read({}, variables, tmp_path)
    usual = {} if prefix else {"timezone": "UTC", "external": False}
    assert msgspec.structs.asdict(config.farm) == OTHERS | usual
    assert origins(config)["min_workers"] == ("3", f"environment {prefix}MIN_WORKERS")
    assert config.unknown == ()


def test_a_farm_is_set_in_the_file_with_numbers_and_booleans(tmp_path: Path) -> None:
    lines = [f"{name} = {in_toml(value)}" for name, value in OTHERS.items()]
    plain = read({}, {}, write(tmp_path, "\n".join(["[tool.poolhand]", *lines]))).farm
    assert msgspec.structs.asdict(plain) == OTHERS
    lines = [f'{name} = "{value}"' for name, value in OTHERS.items()]
    assert read({}, {}, write(tmp_path, "\n".join(["[tool.poolhand]", *lines]))).farm == plain


def test_a_farm_is_set_by_flags(tmp_path: Path) -> None:
    flags = {setting.name: OTHERS[setting.name] for setting in FARM if setting.flag}
    config = read(flags, {}, tmp_path)
    assert config.farm == msgspec.structs.replace(FarmSettings(), **flags)
    assert origins(config)["min_workers"] == ("3", "flag --min")


def test_the_nearest_place_sets_the_farm(tmp_path: Path) -> None:
    folder = write(tmp_path, "[tool.poolhand]\nmax_workers = 20\n")
    bare = {"MAX_WORKERS": "30"}
    prefixed = bare | {"POOLHAND_MAX_WORKERS": "40"}
    found = [
        read({}, {}, folder),
        read({}, bare, folder),
        read({}, prefixed, folder),
        read({"max_workers": 50}, prefixed, folder),
    ]
    assert [config.farm.max_workers for config in found] == [20, 30, 40, 50]
    assert [origins(config)["max_workers"][1] for config in found] == [
        "pyproject.toml [tool.poolhand]",
        "environment MAX_WORKERS",
        "environment POOLHAND_MAX_WORKERS",
        "flag --max",
    ]


def test_only_a_farm_is_set_without_our_prefix(tmp_path: Path) -> None:
    stray = {"STORE": "x", "APP": "y", "LOGLEVEL": "loud", "TIMEZONE": "no", "EXTERNAL": "no"}
    config = read({}, stray, tmp_path)
    assert config.store.is_default
    assert (config.app.text, config.loglevel) == (None, "info")
    assert (config.farm.timezone, config.farm.external) == ("UTC", False)


def test_farm_variables_without_our_prefix_do_not_affect_other_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("TIMEZONE", "MIN_WORKERS", "MAX_WORKERS", "STORE", "EXTERNAL", "SOFT_TIMEOUT_S"):
        monkeypatch.setenv(name, "stray")
    assert load_timezone() == "UTC"
    assert load_app_store().is_default
    assert load_store()[0].is_default
    app = App()
    assert app.url == f"sqlite:///{tmp_path}/poolhand.db"
    app.cron("0 2 * * *")


def test_an_app_without_a_store_in_code_uses_the_configured_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = [App()]
    write(tmp_path, '[tool.poolhand]\nstore = "sqlite:///file.db"\n')
    found.append(App())
    monkeypatch.setenv("POOLHAND_STORE", "memory://")
    monkeypatch.setenv("POOLHAND_APP", "no app")
    found += [App(), App(None), App("sqlite:///code.db")]
    assert [(app.url, app.store_origin) for app in found] == [
        (f"sqlite:///{tmp_path}/poolhand.db", "default"),
        (f"sqlite:///{tmp_path}/file.db", "pyproject.toml [tool.poolhand]"),
        ("memory://", "environment POOLHAND_STORE"),
        ("memory://", "environment POOLHAND_STORE"),
        (f"sqlite:///{tmp_path}/code.db", "the code"),
    ]
    monkeypatch.setenv("POOLHAND_STORE", "agents.db")
    with pytest.raises(
        UsageError, match=r"store='agents.db' \(environment POOLHAND_STORE\) is not"
    ):
        App()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("min_workers", "-1"),
        ("min_workers", "1001"),
        ("min_workers", "1.5"),
        ("min_workers", "true"),
        ("max_workers", "0"),
        ("max_workers", "auto"),
        ("max_workers", "٣"),
        ("prefetch_per_worker", "0"),
        ("prefetch_per_worker", "10001"),
        ("scale_up_batch_size", "0"),
        ("scale_down_batch_size", "0"),
        ("scale_check_interval_s", "0.04"),
        ("scale_check_interval_s", "3601"),
        ("heartbeat_interval_s", "0"),
        ("heartbeat_interval_s", "none"),
        ("worker_shutdown_grace_s", "-1"),
        ("worker_shutdown_grace_s", "inf"),
        ("soft_timeout_s", "nan"),
        ("hard_timeout_s", "0"),
        ("external", "maybe"),
        ("external", "2"),
        ("timezone", "Mars/Olympus"),
        ("timezone", "Europe"),
        ("timezone", "../../etc/localtime"),
        ("timezone", "/etc/localtime"),
        ("timezone", "a\0b"),
        ("loglevel", "loud"),
    ],
)
def test_invalid_farm_settings_are_refused(tmp_path: Path, name: str, text: str) -> None:
    variable = f"POOLHAND_{name.upper()}"
    with pytest.raises(UsageError) as raised:
        read({}, {variable: text}, tmp_path)
    (allowed,) = (setting.kind.allowed for setting in SETTINGS if setting.name == name)
    assert raised.value.message == (
        f"{name}={text!r} (environment {variable}) is not allowed; it must be {allowed}"
    )


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("min_workers", "0", 0),
        ("min_workers", " 10 ", 10),
        ("max_workers", "1000", 1_000),
        ("scale_check_interval_s", ".05", 0.05),
        ("worker_shutdown_grace_s", "0", 0.0),
        ("soft_timeout_s", "None", None),
        ("external", "Yes", True),
        ("external", "off", False),
        ("timezone", "UTC", "UTC"),
    ],
)
def test_valid_farm_settings_are_accepted(
    tmp_path: Path, name: str, text: str, value: Plain
) -> None:
    assert getattr(read({}, {f"POOLHAND_{name.upper()}": text}, tmp_path).farm, name) == value


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("min_workers = true", "min_workers='true' (pyproject.toml [tool.poolhand]) is not"),
        ("min_workers = [1]", "min_workers=[1] in [tool.poolhand] of pyproject.toml is not"),
        ("min_workers = 2.5", "min_workers='2.5' (pyproject.toml [tool.poolhand]) is not"),
        (f"min_workers = 0x{'f' * 9_000}", "min_workers='<a int>' (pyproject.toml"),
        ("hard_exit_after_s = inf", "hard_exit_after_s='inf' (pyproject.toml"),
        ("timezone = 1", "timezone=1 in [tool.poolhand] of pyproject.toml is not allowed; it must"),
    ],
)
def test_invalid_farm_settings_in_the_file_are_reported(
    tmp_path: Path, line: str, told: str
) -> None:
    with pytest.raises(UsageError) as raised:
        read({}, {}, write(tmp_path, f"[tool.poolhand]\n{line}\n"))
    assert str(raised.value).startswith(told)


def test_all_invalid_farm_settings_are_reported_at_once(tmp_path: Path) -> None:
    folder = write(tmp_path, '[tool.poolhand]\nmax_workers = 4\nexternal = "x"\n')
    variables = {"POOLHAND_TIMEZONE": "local", "POOLHAND_MIN_WORKERS": "5", "SOFT_TIMEOUT_S": "60"}
    variables |= {"HARD_TIMEOUT_S": "30"}
    with pytest.raises(UsageError) as raised:
        read({"prefetch_per_worker": 0}, variables, folder)
    assert raised.value.message.split("; ") == [
        "prefetch_per_worker='0' (flag --concurrency) is not allowed",
        "it must be a whole number from 1 to 10,000",
        "timezone='local' (environment POOLHAND_TIMEZONE) is not allowed",
        "it must be a zone such as Europe/Paris",
        "external='x' (pyproject.toml [tool.poolhand]) is not allowed",
        "it must be true or false",
        "max_workers='4' (pyproject.toml [tool.poolhand]) is not allowed",
        "it must be at least min_workers='5' (environment POOLHAND_MIN_WORKERS)",
        "hard_timeout_s='30' (environment HARD_TIMEOUT_S) is not allowed",
        "it must be at least soft_timeout_s='60' (environment SOFT_TIMEOUT_S)",
    ]


def test_a_minimum_above_the_default_maximum_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"max_workers='10' \(default\) is not allowed"):
        read({"min_workers": 11}, {}, tmp_path)
    assert read({"min_workers": 10}, {}, tmp_path).farm.min_workers == 10
    assert read({}, {"SOFT_TIMEOUT_S": "5"}, tmp_path).farm.hard_timeout_s is None


def test_the_profile_of_language_models_takes_one_job_at_a_time(tmp_path: Path) -> None:
    folder = write(tmp_path, "[tool.poolhand]\nprefetch_per_worker = 7\n")
    by_profile = read({}, {}, folder, "llm")
    assert by_profile.farm == FarmSettings(prefetch_per_worker=1)
    assert origins(by_profile)["prefetch_per_worker"] == ("1", "flag --profile llm")
    by_variable = read({}, {"PREFETCH_PER_WORKER": "3"}, folder, "llm")
    assert by_variable.farm.prefetch_per_worker == 3
    by_flag = read({"prefetch_per_worker": 4}, {"PREFETCH_PER_WORKER": "3"}, folder, "llm")
    assert by_flag.farm.prefetch_per_worker == 4
    assert origins(by_flag)["prefetch_per_worker"] == ("4", "flag --concurrency")
    with pytest.raises(UsageError, match=r"profile='lm' \(flag --profile\) .* it must be llm"):
        read({}, {}, folder, "lm")


@pytest.mark.parametrize("text", ["debug", "INFO", "warning", "error"])
def test_the_log_level_is_a_setting(tmp_path: Path, text: str) -> None:
    assert read({}, {"POOLHAND_LOGLEVEL": text}, tmp_path).loglevel == text.lower()


def test_a_flag_without_a_setting_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="there is no flag for min_worker, timezone"):
        read({"min_worker": 1, "timezone": "UTC"}, {}, tmp_path)


def test_commands_that_only_read_a_store_ignore_farm_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write(tmp_path, '[tool.poolhand]\nstore = "sqlite:///file.db"\n'))
    monkeypatch.delenv("POOLHAND_STORE", raising=False)
    monkeypatch.setenv("POOLHAND_APP", "agents:app")
    monkeypatch.setenv("MAX_WORKERS", "auto")
    store, app = load_store()
    assert (store.text, app.text) == ("sqlite:///file.db", "agents:app")
    assert app.rank < store.rank
    with pytest.raises(UsageError, match=r"max_workers='auto' \(environment MAX_WORKERS\)"):
        load()
    with pytest.raises(UsageError, match=r"store='nonsense' \(flag --store\)"):
        load_store(store="nonsense")


def test_the_actor_is_the_login_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "anna")
    assert person() == "anna"


@pytest.mark.parametrize(
    "variable", ["POOLHAND_STOR", "POOLHAND_URL", "POOLHAND_DB", "POOLHAND_DATABASE"]
)
def test_an_app_warns_about_a_misspelt_store_variable(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    variable: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("POOLHAND_STORE", raising=False)
    App()
    assert caplog.messages == []
    monkeypatch.setenv(variable, "sqlite:///other.db")
    App()
    assert caplog.messages == [
        f"{variable} is not a variable of poolhand and has no effect; "
        "did you mean POOLHAND_STORE? "
        f"This app uses sqlite:///{tmp_path.resolve()}/poolhand.db (default)"
    ]


def test_a_file_is_shown_by_its_full_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path.resolve()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    for url, shown in [
        ("sqlite:///a.db", f"sqlite:///{folder}/a.db"),
        ("sqlite:///sub/../a.db", f"sqlite:///{folder}/a.db"),
        ("sqlite:///link/a.db", f"sqlite:///{folder}/a.db"),
        ("sqlite:///a.db?permissions=660", f"sqlite:///{folder}/a.db?permissions=660"),
        ("sqlite:////data/a.db", "sqlite:////data/a.db"),
        ("SQLite:///a.db", f"SQLite:///{folder}/a.db"),
        ("memory://", "memory://"),
        ("sqlite:///:memory:", "sqlite:///:memory:"),
        ("sqlite:///", "sqlite:///"),
        ("sqlite://a.db", "sqlite://a.db"),
        ("sqlite:///nul\0.db", "sqlite:///nul\0.db"),
        ("postgresql://me:secret@h/db", "postgresql://me:***@h/db"),
    ]:
        assert located(url) == shown


def test_in_a_deleted_working_directory_a_relative_url_is_shown_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert located("sqlite:///a.db") == "sqlite:///a.db"
