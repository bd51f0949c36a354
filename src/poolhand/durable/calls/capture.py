"""Capture: copies what a job prints and logs into its event log.

The output still goes to its stream as well. The job is found by its context, which its threads have
as well. Installed while at least one worker captures.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, get_ident
from typing import Any, TextIO

import msgspec

from poolhand.context import RunningJobApi, running
from poolhand.durable.calls.attribution import close_shown
from poolhand.errors import PoolhandError
from poolhand.rules.streams import StreamKind

MOST_BYTES = 1024 * 1024  # of one attempt
LONGEST_LINE = 16 * 1024
OUTPUT = "output"  # key in the shelf of an attempt
BEYOND = f"what this attempt wrote beyond {MOST_BYTES:,} bytes is not kept"

_encode = msgspec.json.Encoder().encode


class Output:
    """The output of one attempt: lines that are not complete yet, by stream and thread."""

    def __init__(self, inside: RunningJobApi) -> None:
        self._inside = inside
        self._parts: dict[tuple[str, int], str] = {}
        self._left = MOST_BYTES
        self._lock = Lock()

    def write(self, stream: str, text: str) -> None:
        """Emit all lines that this text completes."""
        who = (stream, get_ident())
        with self._lock:
            *lines, rest = (self._parts.pop(who, "") + text).split("\n")
            while len(rest) > LONGEST_LINE:
                lines.append(rest[:LONGEST_LINE])
                rest = rest[LONGEST_LINE:]
            if rest:
                self._parts[who] = rest
        for line in lines:
            self.tell({"stream": stream, "text": line})

    def close(self) -> None:
        """Emit the lines that were never completed."""
        with self._lock:
            parts, self._parts = self._parts, {}
        for (stream, _), text in parts.items():
            self.tell({"stream": stream, "text": text})

    def tell(self, line: dict[str, Any]) -> None:
        if self._left < 0:
            return
        line["text"] = line["text"][:LONGEST_LINE].encode(errors="replace").decode()
        data = _encode(line)
        self._left -= len(data)
        if self._left < 0:
            data = _encode({"stream": line["stream"], "text": BEYOND})
        try:
            self._inside.tell(StreamKind.LOG, data)
        except PoolhandError:
            # The store cannot keep up; a job does not fail because it prints.
            self._left = -1


def output_of(inside: RunningJobApi | None) -> Output | None:
    """Return the Output of an attempt at a stored job; None outside of one."""
    if inside is None or inside.token is None:
        return None
    output: Output | None = inside.shelf.get(OUTPUT)
    return output if output is not None else inside.shelf.setdefault(OUTPUT, Output(inside))


def close_output(shelf: dict[str, Any]) -> None:
    """Emit the incomplete lines of the attempt with this shelf."""
    output: Output | None = shelf.get(OUTPUT)
    if output is not None:
        output.close()
    close_shown(shelf)


class Tee:
    """A stream that captures output of jobs and passes everything on to the original one."""

    def __init__(self, name: str, stream: TextIO) -> None:
        self._name = name
        self._stream = stream

    def write(self, text: str) -> int:
        output = output_of(running.get())
        if output is not None and isinstance(text, str):
            output.write(self._name, text)
        return self._stream.write(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class JobHandler(logging.Handler):
    """Captures log records of jobs."""

    def emit(self, record: logging.LogRecord) -> None:
        output = output_of(running.get())
        if output is None:
            return
        try:
            text = self.format(record)
            level, name = record.levelname, record.name
            output.tell({"stream": "log", "level": level, "logger": name, "text": text})
        except Exception:
            self.handleError(record)


class _Installed:
    """The installed replacements of this process's streams, and the number of their users."""

    def __init__(self) -> None:
        self.users = 0
        self.lock = Lock()
        self.tees: dict[str, tuple[Tee, TextIO]] = {}
        self.handler = JobHandler()


_installed = _Installed()


@contextmanager
def captured() -> Iterator[None]:
    """Capture the output of jobs while the block runs."""
    begin_capture()
    try:
        yield
    finally:
        end_capture()


def is_capturing() -> bool:
    return _installed.users > 0


def begin_capture() -> None:
    """Install the tees, unless they are installed."""
    with _installed.lock:
        _installed.users += 1
        if _installed.users > 1:
            return
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is not None:
                tee = Tee(name, stream)
                _installed.tees[name] = tee, stream
                setattr(sys, name, tee)
        logging.getLogger().addHandler(_installed.handler)


def end_capture() -> None:
    """Restore the original streams when the last user ends."""
    with _installed.lock:
        _installed.users -= 1
        if _installed.users:
            return
        for name, (tee, stream) in _installed.tees.items():
            if getattr(sys, name) is tee:
                # Otherwise other code has replaced the stream since.
                setattr(sys, name, stream)
        _installed.tees.clear()
        logging.getLogger().removeHandler(_installed.handler)
