"""Building blocks of private test servers: programs, ports and a self-cleaning folder."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import IO

from tests.private_servers import caretaker

PAUSE = 0.005
PATIENCE = 60.0  # seconds to wait for a server before giving up
SOCKET_PATH = 100  # bytes, a little less than the shortest limit of a kernel
PORTS = range(10_240, 32_768)  # below the range from which kernels assign client ports


class ServerFailed(Exception):
    """A test server did not do what was requested; the message contains its own output."""


class ServerMissing(ServerFailed):
    """The programs of a test server are not installed; `missing` names them."""

    def __init__(self, what: str, missing: Sequence[str], searched: Sequence[Path], how: str):
        places = ", ".join(map(str, searched)) or "the PATH"
        super().__init__(
            f"{what} is not installed: no {', '.join(missing)} in {places}; install it with: {how}"
        )
        self.what = what
        self.missing = tuple(missing)
        self.how = how


def find_programs(
    what: str, programs: Sequence[str], folders: Iterable[Path], how: str
) -> dict[str, Path]:
    """Return the programs from the first folder that has them all; raises ServerMissing."""
    searched: dict[Path, list[str]] = {}
    for folder in folders:
        lacking = [name for name in programs if not os.access(folder / name, os.X_OK)]
        if not lacking:
            return {name: folder / name for name in programs}
        searched.setdefault(folder, lacking)
    nearest = min(searched.values(), key=len, default=list(programs))
    raise ServerMissing(what, nearest, list(searched), how)


def on_path(program: str) -> Iterator[Path]:
    """Yield the real folder of a program on the PATH, which contains its companions as well."""
    found = shutil.which(program)
    if found:
        yield Path(found).resolve().parent


def free_port() -> int:
    """Return a port of 127.0.0.1 that is not in use now.

    It is not assigned by the kernel: clients get their ports from that range, and a client that
    keeps reconnecting to a stopped server would sooner or later connect to itself.
    """
    # Not the shared generator: tests seed it, so many would choose the same ports.
    for port in random.SystemRandom().sample(PORTS, 200):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ServerFailed(f"no free port between {PORTS.start} and {PORTS.stop - 1} on 127.0.0.1")


def wait_until(
    what: str, is_so: Callable[[], bool], limit: float = PATIENCE, then: Callable[[], str] = str
) -> None:
    """Wait until `is_so()`; on timeout raise ServerFailed with the text of `then()`."""
    deadline = time.monotonic() + limit
    while not is_so():
        if time.monotonic() > deadline:
            raise ServerFailed(f"waited {limit:g} s in vain until {what}. {then()}".rstrip())
        Event().wait(PAUSE)


class PrivateFolder:
    """The folder of one server and its processes; removed at the latest when this process ends.

    Under root, its programs run as another user, because servers refuse to run as root.
    """

    def __init__(self, prefix: str, program: str) -> None:
        self._program = program
        self._user = _other_user() if os.geteuid() == 0 else None
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=self._place(prefix)))
        if self._user is not None:
            os.chown(self.path, *self._user)
        self._caretaker = subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", caretaker.__file__),
                *(str(os.getpid()), str(self.path), program),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            # Ctrl-C is for the process that started this one only.
            start_new_session=True,
        )

    def _place(self, prefix: str) -> str:
        """Return the folder for temporary files, or /tmp if that is too deep or not accessible."""
        usual = Path(tempfile.gettempdir()).resolve()
        deep = len(os.fsencode(usual)) + len(prefix) + 32 > SOCKET_PATH
        above = (usual, *usual.parents)
        closed = self._user is not None and not all(f.stat().st_mode & stat.S_IXOTH for f in above)
        return "/tmp" if deep or closed else str(usual)  # noqa: S108 - mkdtemp makes it private

    def run(self, what: Sequence[str | Path]) -> None:
        """Run a program to its end; raise ServerFailed with its output if it fails."""
        done = self._start(what, subprocess.PIPE)
        said, _ = done.communicate()
        if done.returncode:
            text = said.decode(errors="replace").strip()
            raise ServerFailed(f"{Path(what[0]).name} ended with {done.returncode}: {text}")

    def start(self, what: Sequence[str | Path], log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start a long-running program that writes to a log."""
        return self._start(what, log)

    def _start(
        self, what: Sequence[str | Path], output: int | IO[bytes]
    ) -> subprocess.Popen[bytes]:
        user, group = self._user or (None, None)
        try:
            return subprocess.Popen(
                what,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.path,
                env=ENVIRONMENT,
                user=user,
                group=group,
                extra_groups=None if user is None else [],
                start_new_session=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise ServerFailed(f"{what[0]} cannot be started: {error}") from error

    def processes(self) -> list[int]:
        return caretaker.processes_of(self.path, self._program)

    def signal(self, number: signal.Signals) -> list[int]:
        """Send a signal to every process; return their process ids."""
        found = self.processes()
        for pid in found:
            caretaker.signal_process(pid, number)
        return found

    def hold(self) -> bool:
        """Stop every process; return whether all are stopped, so that none can start another."""
        moving = [pid for pid in self.processes() if not caretaker.stands_still(pid)]
        for pid in moving:
            caretaker.signal_process(pid, signal.SIGSTOP)
        return not moving

    def kill(self) -> None:
        """Kill every process and wait until all are gone."""
        if not caretaker.kill_processes(self.path, self._program):
            raise ServerFailed(f"processes survive being killed: {self.processes()}")

    def clear(self) -> None:
        """End all processes and remove the folder."""
        caretaker.clear(self.path, self._program)
        # Closing the pipe would suffice, but a fork of this process may hold it open.
        self._caretaker.communicate(b".")


# The environment of the caller must not affect how a server behaves.
ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C"}


def _other_user() -> tuple[int, int]:
    import pwd

    for name in ("postgres", "nobody"):
        try:
            account = pwd.getpwnam(name)
        except KeyError:
            continue
        return account.pw_uid, account.pw_gid
    raise ServerFailed("no user but root: servers refuse to run as root; add the user nobody")
