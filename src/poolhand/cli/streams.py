"""The streams of a process: those that are closed, full or gone end no command halfway."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import TextIO


class SafeStream(TextIOWrapper):
    """Text for a place that may not take it: that is noted as `lost`, and the rest is dropped."""

    lost: OSError | None = None

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self._drop(error)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._drop(error)

    def _drop(self, error: OSError) -> None:
        self.lost = self.lost or error
        # What is left in the buffer goes nowhere, or Python would complain of it at its end.
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)


def take_over() -> None:
    """Put streams in the place of those that the process was started with."""
    sys.stdout, sys.stderr = _stream(sys.stdout), _stream(sys.stderr)


def output_is_lost() -> bool:
    """Write what is left, and tell whether some of the output went nowhere; say so if we can.

    A reader that has gone, as `head` does, had enough and needs no word.
    """
    sys.stdout.flush()
    lost = sys.stdout.lost if isinstance(sys.stdout, SafeStream) else None
    if lost is not None and not isinstance(lost, BrokenPipeError):
        sys.stderr.write(f"poolhand: the output could not be written: {lost.strerror}\n")
    return lost is not None


def _stream(file: TextIO | None) -> TextIO:
    if file is None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        return open(nowhere, "w", encoding="utf-8", closefd=False)
    if not isinstance(file, TextIOWrapper):
        return file
    return SafeStream(
        file.buffer,
        file.encoding,
        # A terminal that cannot show a character gets its number, not an error.
        "backslashreplace",
        line_buffering=file.line_buffering,
        write_through=file.write_through,
    )
