"""The output relay: lines of worker processes, escaped, with the name of their worker."""

from __future__ import annotations

import os

import pytest

from poolhand.farm import output_relay as relaying
from poolhand.farm.output_relay import LAST_OUTPUT, OutputRelay


class Screen:
    """Stands for the stdout or stderr of the supervisor."""

    def __init__(self) -> None:
        self._read, self.file = os.pipe()

    def text(self, relay: OutputRelay) -> str:
        """Return all that was written until the relay has ended."""
        relay.close()
        os.close(self.file)
        with open(self._read, encoding="utf-8") as file:
            return file.read()


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """Return places for output and errors."""
    screen = Screen()
    monkeypatch.setattr(relaying, "STDOUT", screen.file)
    monkeypatch.setattr(relaying, "STDERR", screen.file)
    return screen


def say(file: int, *texts: bytes) -> None:
    for text in texts:
        os.write(file, text)
    os.close(file)


def test_every_output_line_is_labelled_with_its_worker_and_escaped(screen: Screen) -> None:
    relay = OutputRelay(shows=True)
    output, errors = relay.open("w.1")
    say(output, b"\x1b[2J", b"cleared\nhalf \xc3", b"\xbc line\n\xff\n", b"no end")
    relay.last("w.1", 0.0)
    say(errors)
    assert relay.last("w.1", 30.0) == ""
    assert screen.text(relay).splitlines() == [
        r"w.1 | \x1b[2Jcleared",
        "w.1 | half ü line",
        "w.1 | \N{REPLACEMENT CHARACTER}",
        "w.1 | no end",
    ]


def test_lines_of_different_workers_are_not_mixed(screen: Screen) -> None:
    relay = OutputRelay(shows=True)
    first, second = relay.open("w.1"), relay.open("w.2")
    for number in range(100):
        os.write(first[0], b"one ")
        os.write(second[1], b"two ")
        os.write(first[0], f"{number}\n".encode())
        os.write(second[1], f"{number}\n".encode())
    for file in (*first, *second):
        os.close(file)
    relay.last("w.1", 30.0)
    relay.last("w.2", 30.0)
    lines = screen.text(relay).splitlines()
    for worker, word in (("w.1", "one"), ("w.2", "two")):
        own = [line for line in lines if line.startswith(f"{worker} | ")]
        assert own == [f"{worker} | {word} {number}" for number in range(100)]


def test_only_the_end_of_hidden_output_is_kept(screen: Screen) -> None:
    relay = OutputRelay(shows=False)
    output, errors = relay.open("w.1")
    say(output, b"x\n" * 5000, b"last\n")
    say(errors)
    kept = relay.last("w.1", 30.0)
    assert kept.endswith("w.1 | last")
    assert len(kept) <= LAST_OUTPUT
    assert screen.text(relay) == ""


def test_a_closed_relay_leaves_no_open_files() -> None:
    OutputRelay(shows=True).close()
    before = len(os.listdir("/dev/fd"))
    relay = OutputRelay(shows=False)
    output, errors = relay.open("w.1")
    say(output)
    # The other end is held by a process that the relay does not wait for.
    relay.close()
    os.close(errors)
    assert len(os.listdir("/dev/fd")) == before


def test_a_relay_whose_thread_ends_before_it_is_woken_is_closed_without_an_error() -> None:
    relay = OutputRelay(shows=False)
    output, errors = relay.open("w.1")
    # As if the thread had seen the request to end before the call that wakes it.
    relay._closing = True
    say(output)
    say(errors)
    assert relay._thread is not None
    relay._thread.join(30.0)
    relay.close()
