"""Attribution: prefixes every line that a job prints or logs with its job, and escapes it.

For processes whose output is read beside that of many jobs. Terminal control characters are made
harmless. Output from outside of jobs passes unchanged.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import suppress
from threading import Lock, get_ident
from typing import Any, TextIO

from poolhand.context import RunningJobApi, running
from poolhand.rules.job import Job
from poolhand.rules.values.escape import complete_lines, safe

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
SHOWN = "shown"  # key in the shelf of an attempt
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


class Attributed:
    """A stream of this process; passes output of jobs on line by line, each with its job."""

    def __init__(self, name: str, stream: TextIO) -> None:
        self._name = name
        self._stream = stream
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
        found: ShownLine | None = inside.shelf.get(key)
        return found if found is not None else _make(inside, key, self._stream)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __iter__(self) -> Iterator[str]:
        return iter(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


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
    made: ShownLine = inside.shelf.setdefault(key, ShownLine(job, stream))
    return made


def close_shown(shelf: dict[str, Any]) -> None:
    """Write the incomplete lines of the attempt with this shelf."""
    for key in [key for key in shelf if key.startswith(SHOWN)]:
        shelf[key].close()


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
