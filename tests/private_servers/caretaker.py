"""Removes a test server when the process that started it is gone.

It runs as a separate program and imports nothing of poolhand: a killed process cannot clean up
after itself, and the kernel's parent-death signal is sent when the *thread* that started the child
ends. Its arguments are the process id of its parent, the folder of the server and its program.

All processes of a server have the name of its folder in their command line. They are found by
that, not by their parents: killing the first of them makes the others orphans.
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

LOOK_SECONDS = 1.0  # how often to check that the parent lives, in case a fork keeps the pipe open
PAUSE = 0.005
END_SECONDS = 30.0


def processes_of(folder: Path, program: str) -> list[int]:
    """Return the process ids of the living processes of a server."""
    mark = folder.name
    return [pid for pid, line in _command_lines() if mark in line and _program(line) == program]


def _program(line: str) -> str:
    words = line.split(maxsplit=1)
    return os.path.basename(words[0]).rstrip(":") if words else ""


def _command_lines() -> Iterator[tuple[int, str]]:
    if not sys.platform.startswith("linux"):
        listed = subprocess.run(["ps", "-A", "-o", "pid=,command="], capture_output=True, text=True)
        for line in listed.stdout.splitlines():
            pid, _, command = line.strip().partition(" ")
            yield int(pid), command
        return
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                yield int(name), file.read().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            # The process ended meanwhile, or is not visible to this user.
            continue


def has_ended(pid: int) -> bool:
    return state_of(pid) in {"", "Z", "X"}


def stands_still(pid: int) -> bool:
    """Return whether a process was stopped by a signal, or has ended."""
    return state_of(pid) == "T" or has_ended(pid)


def state_of(pid: int) -> str:
    """Return the system's state letter of a process, empty if it is gone."""
    if not sys.platform.startswith("linux"):
        asked = subprocess.run(
            ["ps", "-o", "state=", "-p", str(pid)],
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
        # A process that is about to end has no command line any more, but may still hold the port.
        if all(map(has_ended, killed)):
            return True
        if time.monotonic() > deadline:
            return False
        select.select([], [], [], PAUSE)


def signal_process(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may be gone."""
    try:
        os.kill(pid, number)
    except OSError:
        # It is gone, or its process id was reused by a process of another user.
        return


def clear(folder: Path, program: str) -> None:
    """Remove a server completely: its processes, its shared memory, its files."""
    import shutil

    kill_processes(folder, program)
    _free_memory(folder)
    shutil.rmtree(folder, ignore_errors=True)
    # A process that was just starting finds no folder; if it started anyway, kill it here.
    kill_processes(folder, program)
    shutil.rmtree(folder, ignore_errors=True)


def _free_memory(folder: Path) -> None:
    """Free the shared memory of a killed PostgreSQL; its lock file contains the segment id."""
    try:
        numbers = (folder / "data" / "postmaster.pid").read_text().splitlines()[6].split()
        segment = int(numbers[1])
    except (OSError, IndexError, ValueError):
        return
    import ctypes

    remove = 0
    ctypes.CDLL(None).shmctl(segment, remove, None)


def keep() -> None:
    """Wait for input or until the parent is gone; then clear."""
    parent, folder, program = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # It ends when its work is done, whatever signal is sent to the whole group.
        signal.signal(number, signal.SIG_IGN)
    while os.getppid() == parent:
        if select.select([sys.stdin], [], [], LOOK_SECONDS)[0]:
            break
    clear(folder, program)


if __name__ == "__main__":
    keep()
