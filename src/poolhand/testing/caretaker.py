"""Takes a test server away when whoever started it is gone.

Run as a program of its own, which imports nothing of ours: a killed process cannot clean up after
itself, and a signal of the kernel at the death of a parent comes when the *thread* that started the
child ends. It is told the number of its parent, the folder of the server and its program.

All processes of a server bear the name of its folder in their command line. It is looked for there,
not by parents: whoever kills the first of them makes orphans of the others.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

LOOK_SECONDS = 1.0  # how often it looks whether its parent lives, should a fork keep the pipe open
PAUSE = 0.005
END_SECONDS = 30.0


def processes_of(folder: Path, program: str) -> list[int]:
    """Return the numbers of the living processes of a server."""
    mark = folder.name
    return [pid for pid, line in _command_lines() if mark in line and _program(line) == program]


def _program(line: str) -> str:
    words = line.split(maxsplit=1)
    return os.path.basename(words[0]).rstrip(":") if words else ""


def _command_lines() -> Iterator[tuple[int, str]]:
    if not sys.platform.startswith("linux"):
        listed = subprocess.run(["ps", "-A", "-o", "pid=,command="], capture_output=True, text=True)  # noqa: S607
        for line in listed.stdout.splitlines():
            pid, _, command = line.strip().partition(" ")
            yield int(pid), command
        return
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                yield int(name), file.read().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            # It has ended meanwhile, or is not ours to see.
            continue


def has_ended(pid: int) -> bool:
    return state_of(pid) in {"", "Z", "X"}


def stands_still(pid: int) -> bool:
    """Return whether a process was stopped by a signal, or has ended."""
    return state_of(pid) == "T" or has_ended(pid)


def state_of(pid: int) -> str:
    """Return the letter that the system has for what a process does, none when it is gone."""
    if not sys.platform.startswith("linux"):
        asked = subprocess.run(  # noqa: S603
            ["ps", "-o", "state=", "-p", str(pid)],  # noqa: S607
            capture_output=True,
            text=True,
        )
        return asked.stdout.strip()[:1]
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ""


def kill_processes(folder: Path, program: str) -> bool:
    """Kill all processes of a server; return whether they are gone."""
    deadline = time.monotonic() + END_SECONDS
    killed: set[int] = set()
    while True:
        found = processes_of(folder, program)
        for pid in found:
            signal_process(pid, signal.SIGKILL)
        killed.update(found)
        # One that is about to end has no command line any more, and may hold the port still.
        if all(map(has_ended, killed)):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(PAUSE)


def signal_process(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may be gone."""
    try:
        os.kill(pid, number)
    except OSError:
        # Gone; or it was never ours, as the number has gone to somebody else.
        return


def clear(folder: Path, program: str) -> None:
    """Leave nothing of a server: no process, no memory, no file."""
    import shutil

    kill_processes(folder, program)
    _free_memory(folder)
    shutil.rmtree(folder, ignore_errors=True)
    # Whoever was just about to start when it was killed finds no folder; if not, it ends here.
    kill_processes(folder, program)
    shutil.rmtree(folder, ignore_errors=True)


def _free_memory(folder: Path) -> None:
    """Free the segment that a killed PostgreSQL leaves behind; its lock file has the number."""
    try:
        numbers = (folder / "data" / "postmaster.pid").read_text().splitlines()[6].split()
        segment = int(numbers[1])
    except (OSError, IndexError, ValueError):
        return
    import ctypes

    remove = 0
    ctypes.CDLL(None).shmctl(segment, remove, None)


def keep() -> None:
    """Wait until something comes, or until the parent is gone; then clear."""
    parent, folder, program = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # It ends when its work is done, whatever is sent to everybody.
        signal.signal(number, signal.SIG_IGN)
    while os.getppid() == parent:
        if select.select([sys.stdin], [], [], LOOK_SECONDS)[0]:
            break
    clear(folder, program)


if __name__ == "__main__":
    keep()
