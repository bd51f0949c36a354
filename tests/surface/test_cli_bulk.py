"""The commands that find jobs by time and user, shorten ids, and cancel many jobs at once."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from poolhand.cli.options import moment
from poolhand.durable.calls.call_record import CallRecord, write_call_record
from poolhand.wire.payload import encode
from tests.surface.test_cli import HOSTILE, Desk, desk, elsewhere, run

__all__ = ["desk", "elsewhere"]


def listed(desk: Desk, *words: str) -> list[str]:
    return [job["id"] for job in desk.json("jobs", "list", *words)["jobs"]]


def counts(desk: Desk) -> dict[str, int]:
    return {str(status): count for status, count in desk.ask(lambda o: o.count()).items()}


# Filters


def test_jobs_are_found_by_submit_time_and_submitter(desk: Desk) -> None:
    first, second = desk.add(user="ada"), desk.add(user="bob")
    assert listed(desk, "--user", "ada") == [first]
    assert listed(desk, "--since", "1h") == [second, first]
    assert listed(desk, "--until", "1h") == []
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert listed(desk, "--since", "2020-01-01", "--until", later) == [second, first]
    assert listed(desk, "--id-prefix", first) == [first]
    assert listed(desk, "--id-prefix", "none") == []
    dead = desk.dead("work", "other", user="ada")
    assert desk.run("dead", "list", "--user", "ada", "--since", "1d").stdout.count(dead) == 1
    assert desk.run("dead", "list", "--user", "bob").stderr == "no such jobs\n"


@pytest.mark.parametrize(
    "when", ["2x", "h", "", "yesterday", "2030-13-01", "\x1b[31m", "9" * 40 + "d"]
)
def test_an_invalid_time_is_refused_with_an_example(desk: Desk, when: str) -> None:
    told = desk.run("jobs", "list", "--since", when, code=2).stderr
    assert "is not a time; give one such as 90s, 15m, 2h, 3d, 1w (before now)" in told
    assert "\x1b" not in told


def test_a_time_is_a_duration_before_now_or_a_utc_timestamp() -> None:
    now = datetime.now(UTC)
    assert abs(now - timedelta(hours=1, minutes=30) - moment("1h30m")) < timedelta(minutes=1)
    assert moment("2030-01-31T12:00") == datetime(2030, 1, 31, 12, tzinfo=UTC)
    assert moment("2030-01-31T12:00+02:00") == datetime(2030, 1, 31, 10, tzinfo=UTC)


def test_a_reversed_time_range_is_refused(desk: Desk) -> None:
    told = desk.run("jobs", "list", "--since", "1h", "--until", "2h", code=2).stderr
    assert "is not before until=" in told


# Short ids


def test_as_much_of_an_id_as_no_other_has_names_a_job(desk: Desk) -> None:
    ids = [desk.add(id=f"{letter}bcdef-{number}") for number, letter in enumerate("abc")]
    assert desk.json("jobs", "show", "abcd")["id"] == ids[0]
    assert desk.json("jobs", "cancel", "bbcd")[0]["id"] == ids[1]
    dead = desk.dead("work", "other", id="dead-12345")
    assert desk.json("dead", "show", "dead-1")["id"] == dead
    assert desk.json("dead", "retry", "dead-1")[0]["id"] == dead
    assert "is too short; give at least 4" in desk.run("jobs", "show", "abx", code=2).stderr


def test_an_id_that_several_begin_with_is_an_error_that_lists_them(desk: Desk) -> None:
    first, second = desk.add(id="same-1"), desk.add(id="same-2")
    for words in (("jobs", "show"), ("jobs", "cancel"), ("jobs", "retry"), ("dead", "drop")):
        told = desk.run(*words, "same", code=2).stderr
        assert (
            f"id 'same' matches several jobs: {second}, {first}; give more characters of it" in told
        )
    assert counts(desk) == {"queued": 2}


# Cancelling many


def test_all_jobs_that_match_the_filters_are_cancelled(desk: Desk) -> None:
    for pool in ("a", "a", "b"):
        desk.add("fetch", pool, tenant="t")
    result = desk.run("jobs", "cancel", "--all", "--yes", "--pool", "a", "--tenant", "t")
    assert result.stdout == "2 cancelled or asked to stop, 0 not\n"
    assert counts(desk) == {"queued": 1, "cancelled": 2}
    summary = desk.json("jobs", "cancel", "--all", "--yes", "--task", "fetch", "--since", "1h")
    assert summary == {"done": 1, "not_done": 0, "answers": []}


def test_yes_with_an_id_cancels_only_that_job(desk: Desk) -> None:
    first, _ = desk.add(), desk.add()
    result = desk.run("jobs", "cancel", first, "--yes")
    assert result.stdout == f"{first}: it is cancelled\n"
    assert counts(desk) == {"queued": 1, "cancelled": 1}


def test_a_script_cancels_many_jobs_only_with_a_yes(desk: Desk) -> None:
    desk.add(session="s")
    told = desk.run("jobs", "cancel", "--all", "--session", "s", code=2).stderr
    assert told == "poolhand: this would cancel 1 job (1 queued); give --yes to do it\n"
    told = desk.run("jobs", "cancel", "--all", code=2).stderr
    assert told == "poolhand: this would cancel every job of the store; give a filter or --yes\n"
    told = desk.run("jobs", "cancel", "--all", "--session", "none", code=3).stderr
    assert told == "poolhand: no such jobs; nothing was done\n"
    for words in ((), ("job-1", "--all"), ("job-1", "--pool", "chat")):
        told = desk.run("jobs", "cancel", *words, code=2).stderr
        assert told == "poolhand: give the ids of jobs, or --all with filters\n"
    assert counts(desk) == {"queued": 1}
    desk.run("jobs", "cancel", "--all", "--yes")
    assert counts(desk) == {"cancelled": 1}


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "left"), [(b"y\n", "cancelled"), (b"\n", "queued")])
def test_on_a_terminal_a_bulk_cancel_shows_the_count_and_asks(
    tmp_path: Path, answer: bytes, left: str
) -> None:
    desk = Desk(f"sqlite:///{tmp_path}/agents.db")
    run("migrate", "--store", desk.url)
    desk.add()
    words = ["jobs", "cancel", "--all", "--pool", "chat", "--store", desk.url]
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "poolhand", *words]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True):
        os.close(theirs)
        os.write(ours, answer)
        shown = b"".join(_until_closed(ours)).decode()
    os.close(ours)
    assert "this would cancel 1 job (1 queued)" in shown
    assert "Cancel them? [y/N]" in shown
    assert counts(desk) == {left: 1}


def _until_closed(file: int) -> Iterator[bytes]:
    while True:
        try:
            data = os.read(file, 4096)
        except OSError:
            return
        if not data:
            return
        yield data


# Watching


@pytest.mark.slow
@pytest.mark.parametrize("as_json", [False, True])
def test_a_list_is_shown_again_until_ctrl_c(tmp_path: Path, as_json: bool) -> None:
    desk = Desk(f"sqlite:///{tmp_path}/agents.db")
    run("migrate", "--store", desk.url)
    id = desk.add()
    words = ["jobs", "list", "--watch", "--store", desk.url, *(["--json"] if as_json else [])]
    command = [sys.executable, "-m", "poolhand", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as watching:
        assert watching.stdout is not None
        met = 0
        while met < 2:
            met += id in watching.stdout.readline().decode()
        watching.send_signal(signal.SIGINT)
        watching.communicate()
    assert watching.returncode == 0


# Payloads and dead letters


def brief(**arguments: Any) -> bytes:
    call = ["work", list(arguments), arguments]
    return write_call_record(CallRecord("work", encode(call)))


def test_arguments_and_result_are_shown_on_request(desk: Desk) -> None:
    id = desk.add(brief=brief(city=HOSTILE))
    assert "arguments: " not in desk.run("jobs", "show", id).stdout
    shown = desk.run("jobs", "show", id, "--payload").stdout
    assert "arguments: " in shown
    assert "\x1b" not in shown
    assert "payload" not in desk.json("jobs", "show", id)
    assert desk.json("jobs", "show", id, "--payload")["payload"]["arguments"] == {"city": HOSTILE}


def test_a_long_argument_is_cut_and_json_shows_all_of_it(desk: Desk) -> None:
    id = desk.add(brief=brief(city="x" * 5_000))
    shown = desk.run("jobs", "show", id, "--payload").stdout
    assert shown.endswith("characters are left out; --json shows all)\n")
    assert desk.json("jobs", "show", id, "--payload")["payload"]["arguments"] == {
        "city": "x" * 5_000
    }


def test_a_dead_letter_is_shown_with_its_error_its_attempts_and_its_arguments(desk: Desk) -> None:
    id = desk.dead("fetch", brief=brief(city="Rome"))
    shown = desk.run("dead", "show", id).stdout
    for part in (
        "ValueError: no fetch",
        "    Traceback:",
        "attempts",
        'arguments: {"city":"Rome"}',
    ):
        assert part in shown
    letter = desk.json("dead", "show", id)
    assert letter["error"]["type"] == "ValueError"
    assert letter["error"]["traceback"].startswith("Traceback:")
    assert letter["attempts"] == 1
    assert letter["payload"]["arguments"] == {"city": "Rome"}


def test_a_job_that_is_no_dead_letter_is_not_shown_as_one(desk: Desk) -> None:
    id = desk.add()
    told = desk.run("dead", "show", id, code=4).stderr
    assert told == (
        f"poolhand: job '{id}' is not a dead letter, it is queued; see `poolhand jobs show {id}`\n"
    )
    assert "there is no job 'none'" in desk.run("dead", "show", "none", code=3).stderr
