"""Output streams that do not abort a command when they are closed, full or gone."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import TextIO


class SafeStream(TextIOWrapper):
    """A text stream that keeps its first write error as `lost` and drops the rest."""

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
        # Send the rest of the buffer to /dev/null, or Python reports an error at exit.
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)


def take_over() -> None:
    """Replace stdout and stderr by safe streams."""
    sys.stdout, sys.stderr = _stream(sys.stdout), _stream(sys.stderr)


def output_is_lost() -> bool:
    """Flush stdout, and return whether some output was lost; report that on stderr.

    A reader that has closed the pipe, as `head` does, is not reported.
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
        # A character that the terminal cannot show is written as its number.
        "backslashreplace",
        line_buffering=file.line_buffering,
        write_through=file.write_through,
    )
