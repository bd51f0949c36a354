"""Programs of tests, started as children of a process that has already imported what they import.

`start` does what `subprocess.Popen` does with this interpreter, and spares the program most of its
imports. In `make test-full` and `make faults` it is `subprocess.Popen`: programs then begin as
those of users do.
"""

from __future__ import annotations

import atexit
import base64
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

from tests.extent import FULL

REPOSITORY = Path(__file__).parents[1]
LIMIT = 60.0
CALL = """\
import base64, pickle, sys
function, arguments = pickle.loads(base64.b85decode(sys.argv[1]))
function(*arguments)
"""
# Where a process has no handle, its end could not be waited for from here.
_cold = FULL or not hasattr(os, "pidfd_open")


def start_cold() -> None:
    """Start every program as a new interpreter from now on."""
    global _cold
    _cold = True


class Forked:
    """A program that was started; the part of `subprocess.Popen` that tests need."""

    def __init__(self, server: Server, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server
        self._end = os.pidfd_open(pid)

    def poll(self) -> int | None:
        return self.returncode if self._has_ended(0.0) else None

    def wait(self, timeout: float | None = None) -> int:
        if not self._has_ended(timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _has_ended(self, timeout: float | None) -> bool:
        if self.returncode is None and select.select([self._end], [], [], timeout)[0]:
            self.returncode = self._server.ask({"wait": self.pid})
            os.close(self._end)
        return self.returncode is not None


Program = Forked | subprocess.Popen[bytes]


class Server:
    """The process that forks; see `warm_process.py`."""

    def __init__(self, preload: str) -> None:
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.warm_process", str(theirs.fileno())],
                cwd=REPOSITORY,
                env={**os.environ, "LD_PRELOAD": preload} if preload else None,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self.close)

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        self._link.close()
        self._process.wait(LIMIT)

    def ask(self, request: Mapping[str, object], files: Sequence[int] = ()) -> int:
        socket.send_fds(self._link, [json.dumps(request).encode()], files)
        return int(self._link.recv(32))


@cache
def server(preload: str) -> Server:
    """Return the server whose children have that library before those of the system."""
    return Server(preload)


def parent() -> int:
    """Return the id of the process whose children programs are; it ends with this one."""
    return os.getpid() if _cold else server("").pid


def start(
    words: Sequence[str],
    *,
    cwd: str | Path = REPOSITORY,
    env: Mapping[str, str] | None = None,
    stdout: IO[bytes] | IO[str] | None = None,
    stderr: IO[bytes] | IO[str] | None = None,
    start_new_session: bool = False,
) -> Program:
    """Start `python WORDS`, where the words are -m and a module, -c and code, or a script."""
    if _cold:
        return subprocess.Popen(
            [sys.executable, *words],
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=start_new_session,
        )
    request: dict[str, Any] = {
        "words": list(words),
        "folder": str(cwd),
        "variables": dict(os.environ if env is None else env),
        "session": start_new_session,
    }
    with open(os.devnull, "rb") as nothing:
        files = [nothing.fileno(), *(_number(one, at) for at, one in ((1, stdout), (2, stderr)))]
        forks = server(request["variables"].get("LD_PRELOAD", ""))
        return Forked(forks, forks.ask(request, files))


def start_call(function: Callable[..., object], *arguments: object) -> Program:
    """Start a program that calls a function of a module."""
    return start(["-c", CALL, base64.b85encode(pickle.dumps((function, arguments))).decode()])


def run(
    words: Sequence[str],
    *,
    cwd: str | Path = REPOSITORY,
    env: Mapping[str, str] | None = None,
    timeout: float = LIMIT,
) -> subprocess.CompletedProcess[str]:
    """Run `python WORDS` to its end, and return what it has written."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        program = start(words, cwd=cwd, env=env, stdout=out, stderr=err)
        try:
            code = program.wait(timeout)
        finally:
            if program.poll() is None:
                program.kill()
                program.wait(timeout)
        texts = [_text(one) for one in (out, err)]
    return subprocess.CompletedProcess([*words], code, *texts)


def _number(file: IO[bytes] | IO[str] | None, default: int) -> int:
    return default if file is None else file.fileno()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()
