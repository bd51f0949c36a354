"""The output relay: copies the output of worker processes to that of their supervisor.

It copies line by line, prefixes each line with its worker and escapes control characters, whether
a job wrote it, a library or a process started by a job. It runs on a thread of its own, so that
neither a blocked terminal nor much output delays the supervisor.
"""

from __future__ import annotations

import fcntl
import os
import selectors
from codecs import getincrementaldecoder
from contextlib import suppress
from threading import Condition, Thread

from poolhand.rules.plain import complete_lines, safe

CHUNK = 64 * 1024
ROOM = 1024 * 1024  # bytes that a pipe buffers until the relay reads them
LONGEST_LINE = 256 * 1024  # characters: enough for the longest line of a job, escaped
LAST_OUTPUT = 1000  # characters kept of the output of each process
CLOSE_WITHIN = 2.0
STDOUT, STDERR = 1, 2


class OutputStream:
    """One pipe from a worker, whose lines go to `target`."""

    def __init__(self, worker: str, file: int, target: int) -> None:
        self.worker = worker
        self.file = file
        self.target = target
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def lines(self, data: bytes) -> list[str]:
        """Return the lines that these bytes complete; for no bytes (EOF), the unfinished line."""
        text = self._decoder.decode(data, final=not data)
        lines, self._held = complete_lines(self._held, text, LONGEST_LINE)
        if not data and self._held:
            lines.append(self._held)
        return [f"{self.worker} | {safe(line)}\n" for line in lines]


class OutputRelay:
    """Reads the output of all workers of a supervisor; `shows` it, or only keeps its end."""

    def __init__(self, shows: bool) -> None:
        self._shows = shows
        self._ends: dict[str, str] = {}
        self._open: dict[str, int] = {}
        self._changed = Condition()
        self._thread: Thread | None = None
        self._closing = False

    def open(self, worker: str) -> tuple[int, int]:
        """Return the file descriptors for stdout and stderr of a worker process."""
        made: list[tuple[int, int]] = []
        try:
            for _ in range(2):
                made.append(os.pipe())  # noqa: PERF401 - the first is closed if there is no second
        except OSError:
            _close(*(file for pair in made for file in pair))
            raise
        for (ours, theirs), target in zip(made, (STDOUT, STDERR), strict=True):
            with suppress(OSError, AttributeError):
                fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, ROOM)
            self._begin(OutputStream(worker, ours, target))
        return made[0][1], made[1][1]

    def last(self, worker: str, within: float) -> str:
        """Return the last output of a worker that has ended, and forget it."""
        with self._changed:
            self._changed.wait_for(lambda: worker not in self._open, within)
            return self._ends.pop(worker, "").strip()

    def close(self) -> None:
        """Show the output written so far, and end the thread."""
        self._closing = True
        if self._thread is not None:
            # The thread may have seen `_closing` already and closed the other end of this pipe.
            with suppress(OSError):
                os.write(self._waker, b".")
            # With a timeout: a blocked terminal may hold the thread.
            self._thread.join(CLOSE_WITHIN)
            if not self._thread.is_alive():
                _close(self._waker)

    def _begin(self, stream: OutputStream) -> None:
        with self._changed:
            self._open[stream.worker] = self._open.get(stream.worker, 0) + 1
        os.set_blocking(stream.file, False)
        if self._thread is None:
            self._selector = selectors.DefaultSelector()
            self._wake, self._waker = os.pipe()
            self._selector.register(self._wake, selectors.EVENT_READ)
            self._thread = Thread(target=self._run, name="poolhand-relay", daemon=True)
            self._thread.start()
        self._selector.register(stream.file, selectors.EVENT_READ, stream)
        os.write(self._waker, b".")

    # The thread.

    def _run(self) -> None:
        while True:
            ready = self._selector.select(0 if self._closing else None)
            streams = [key.data for key, _ in ready if key.data is not None]
            if len(streams) < len(ready):
                os.read(self._wake, CHUNK)
            for stream in streams:
                self._read(stream)
            if self._closing and not streams:
                break
        files = [key.fd for key in self._selector.get_map().values()]
        self._selector.close()
        _close(*files)

    def _read(self, stream: OutputStream) -> None:
        try:
            data = os.read(stream.file, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        text = "".join(stream.lines(data))
        if text and self._shows:
            _write(stream.target, text)
        with self._changed:
            if not self._shows:
                # Only hidden output is kept, for `last`.
                kept = self._ends.get(stream.worker, "") + text
                self._ends[stream.worker] = kept[-LAST_OUTPUT:]
            if not data:
                self._selector.unregister(stream.file)
                _close(stream.file)
                self._open[stream.worker] = self._open.get(stream.worker, 1) - 1
                if not self._open[stream.worker]:
                    del self._open[stream.worker]
                self._changed.notify_all()


def _write(target: int, text: str) -> None:
    data = memoryview(text.encode(errors="backslashreplace"))
    with suppress(OSError):
        # If the reader of our output is gone, the text is lost, as with direct writes.
        while data:
            data = data[os.write(target, data) :]


def _close(*files: int) -> None:
    for file in files:
        os.close(file)
