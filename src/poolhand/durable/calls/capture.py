"""Capture: copies what a job prints and logs into its event log.

The output still goes to its stream as well. The job is found by its context, which its threads have
as well. Installed while at least one worker captures.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock, get_ident
from typing import Any, TextIO

import msgspec

from poolhand.context import RunningJobApi, running
from poolhand.errors import PoolhandError
from poolhand.rules.job import Job
from poolhand.rules.plain import complete_lines, safe
from poolhand.rules.streams import StreamKind

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
SHOWN = "shown"  # key in the values of an attempt
LONGEST_NAME = 200


class ShownLine:
    """The output of one attempt to one stream: lines that are not complete yet, by thread."""

    def __init__(self, job: Job, stream: TextIO) -> None:
        self._head = f"{safe(job.name[:LONGEST_NAME])} {job.id} | "
        self._stream = stream
        self._held: dict[int, str] = {}
        self._lock = Lock()

    def write(self, text: str) -> None:
        with self._lock:
            who = get_ident()
            lines, rest = complete_lines(self._held.pop(who, ""), text)
            if rest:
                self._held[who] = rest
        self._show(lines)

    def close(self) -> None:
        """Write the lines that were never completed."""
        with self._lock:
            held, self._held = self._held, {}
        self._show(list(held.values()))

    def _show(self, lines: list[str]) -> None:
        # In one write: other threads write as well.
        text = "".join(f"{self._head}{safe(line)}\n" for line in lines)
        if text:
            put(self._stream, text)


def put(stream: TextIO, text: str) -> None:
    """Write to a stream; a stream that is closed at the other end does not fail the job."""
    with suppress(OSError):
        stream.write(text.encode(errors="backslashreplace").decode())
        stream.flush()


class ReplacedStream:
    """A stream in place of stdout or stderr; all that it does not do itself the original does."""

    def __init__(self, name: str, stream: TextIO) -> None:
        self._name = name
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Attributed(ReplacedStream):
    """A stream of this process; passes output of jobs on line by line, each with its job."""

    def __init__(self, name: str, stream: TextIO) -> None:
        super().__init__(name, stream)
        self.buffer = AttributedBytes(self)

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        shown = self._shown()
        if shown is None:
            put(self._stream, text)
        else:
            shown.write(text)
        return len(text)

    def _shown(self) -> ShownLine | None:
        inside = running.get()
        if inside is None or inside.token is None:
            return None
        key = f"{SHOWN} {self._name}"
        found: ShownLine | None = inside.attempt_values.get(key)
        return found if found is not None else _make(inside, key, self._stream)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


class AttributedBytes:
    """The binary buffer of an attributed stream."""

    def __init__(self, text: Attributed) -> None:
        self._text = text

    def write(self, data: Any) -> int:
        written = bytes(data)
        self._text.write(written.decode(errors="replace"))
        return len(written)

    def flush(self) -> None:
        self._text.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._text._stream.buffer, name)


def _make(inside: RunningJobApi, key: str, stream: TextIO) -> ShownLine | None:
    job = inside.snapshot()
    if not isinstance(job, Job):
        return None
    made: ShownLine = inside.attempt_values.setdefault(key, ShownLine(job, stream))
    return made


def close_shown(attempt_values: dict[str, Any]) -> None:
    """Write the incomplete lines of the attempt with this shelf."""
    for key in [key for key in attempt_values if key.startswith(SHOWN)]:
        attempt_values[key].close()


_in_place: list[str] = []


def attribute_output() -> None:
    """Attribute all output of jobs of this process from now on."""
    if _in_place:
        return
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None:
            setattr(sys, name, Attributed(name, stream))
            _in_place.append(name)


def show_log(level: int | str) -> None:
    """Show log records as well, unless logging is already configured."""
    logging.basicConfig(level=level, format=LOG_FORMAT)


def attributed_level() -> int | None:
    """Return the log level of a process whose output is attributed, else None."""
    return logging.getLogger().level if _in_place else None


MOST_BYTES = 1024 * 1024  # of one attempt
LONGEST_LINE = 16 * 1024
OUTPUT = "output"  # key in the values of an attempt
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
            self.add({"stream": stream, "text": line})

    def close(self) -> None:
        """Emit the lines that were never completed."""
        with self._lock:
            parts, self._parts = self._parts, {}
        for (stream, _), text in parts.items():
            self.add({"stream": stream, "text": text})

    def add(self, line: dict[str, Any]) -> None:
        if self._left < 0:
            return
        line["text"] = line["text"][:LONGEST_LINE].encode(errors="replace").decode()
        data = _encode(line)
        self._left -= len(data)
        if self._left < 0:
            data = _encode({"stream": line["stream"], "text": BEYOND})
        try:
            self._inside.emit(StreamKind.LOG, data)
        except PoolhandError:
            # The store cannot keep up; a job does not fail because it prints.
            self._left = -1


def output_of(inside: RunningJobApi | None) -> Output | None:
    """Return the Output of an attempt at a stored job; None outside of one."""
    if inside is None or inside.token is None:
        return None
    output: Output | None = inside.attempt_values.get(OUTPUT)
    return (
        output if output is not None else inside.attempt_values.setdefault(OUTPUT, Output(inside))
    )


def close_output(attempt_values: dict[str, Any]) -> None:
    """Emit the incomplete lines of the attempt with this shelf."""
    output: Output | None = attempt_values.get(OUTPUT)
    if output is not None:
        output.close()
    close_shown(attempt_values)


class Tee(ReplacedStream):
    """A stream that captures output of jobs and passes everything on to the original one."""

    def write(self, text: str) -> int:
        output = output_of(running.get())
        if output is not None and isinstance(text, str):
            output.write(self._name, text)
        return super().write(text)


class JobHandler(logging.Handler):
    """Captures log records of jobs."""

    def emit(self, record: logging.LogRecord) -> None:
        output = output_of(running.get())
        if output is None:
            return
        try:
            text = self.format(record)
            level, name = record.levelname, record.name
            output.add({"stream": "log", "level": level, "logger": name, "text": text})
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
