"""A server whose wall clock can be set: its programs are started with a library before libc."""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faults.ground import Skipped
from tests.preload import preload
from tests.private_servers.postgres_server import find_postgres
from tests.private_servers.programs import ServerMissing

SOURCE = Path(__file__).with_name("clock.c")
SHIFT = "shift"
_SECONDS = struct.Struct("d")


@contextmanager
def movable_programs() -> Iterator[Path]:
    """Provide a folder with the programs of PostgreSQL for a block; `move` sets their clock."""
    folder = Path(tempfile.mkdtemp(prefix="faults-clock-"))
    try:
        # Servers run as another user, who must be able to enter.
        folder.chmod(0o755)
        library = preload(SOURCE, folder)
        move(folder, 0.0)
        for name, real in find_postgres().items():
            program = folder / name
            program.write_text(
                f"#!/bin/sh\nLD_PRELOAD='{library}' CLOCK_SHIFT='{folder / SHIFT}'\n"
                f"export LD_PRELOAD CLOCK_SHIFT\nexec '{real}' \"$@\"\n"
            )
            program.chmod(0o755)
        yield folder
    except ServerMissing as missing:
        raise Skipped(str(missing)) from missing
    finally:
        shutil.rmtree(folder)


def move(folder: Path, seconds: float) -> None:
    """Set the clock of these programs to so many seconds from the true one."""
    # In place, and in one write: the programs have it mapped.
    fd = os.open(folder / SHIFT, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.write(fd, _SECONDS.pack(seconds))
    finally:
        os.close(fd)
