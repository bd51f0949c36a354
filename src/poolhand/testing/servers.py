"""What every private test server stands on: programs, a port, a folder that goes with its owner."""

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
from typing import IO

from poolhand.testing import caretaker

PAUSE = 0.005
PATIENCE = 60.0  # seconds after which what a server should have done is not waited for any more
SOCKET_PATH = 100  # bytes, a little less than the shortest limit of a kernel
PORTS = range(10_240, 32_768)  # below those that kernels give to clients by themselves


class ServerFailed(Exception):
    """A test server did not do what it was asked; the message has its own words."""


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
    """Yield the folder a program on the PATH really lives in, where its companions are as well."""
    found = shutil.which(program)
    if found:
        yield Path(found).resolve().parent


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on now.

    Not one from the kernel: from its range clients get theirs, and one that tries again and again
    to reach a server which is down would, sooner or later, reach itself.
    """
    # Not from the shared generator: tests seed that, and many would choose alike.
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
    what: str, holds: Callable[[], bool], limit: float = PATIENCE, then: Callable[[], str] = str
) -> None:
    """Wait until something holds; raises ServerFailed with what `then` says when it never does."""
    deadline = time.monotonic() + limit
    while not holds():
        if time.monotonic() > deadline:
            raise ServerFailed(f"waited {limit:g} s in vain until {what}. {then()}".rstrip())
        time.sleep(PAUSE)


class PrivateFolder:
    """The folder of one server, and all that runs in it; gone at the latest with this process.

    As root, what runs there does so as another user, as servers refuse to be root.
    """

    def __init__(self, prefix: str, program: str) -> None:
        self._program = program
        self._user = _other_user() if os.geteuid() == 0 else None
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=self._place(prefix)))
        if self._user is not None:
            os.chown(self.path, *self._user)
        self._caretaker = subprocess.Popen(  # noqa: S603 - our own interpreter and file
            [
                *(sys.executable, "-I", "-S", caretaker.__file__),
                *(str(os.getpid()), str(self.path), program),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            # Ctrl-C is for whoever started this, and for him alone.
            start_new_session=True,
        )

    def _place(self, prefix: str) -> str:
        """Return where temporary files go, unless that is too deep or closed to the other user."""
        usual = Path(tempfile.gettempdir()).resolve()
        deep = len(os.fsencode(usual)) + len(prefix) + 32 > SOCKET_PATH
        above = (usual, *usual.parents)
        closed = self._user is not None and not all(f.stat().st_mode & stat.S_IXOTH for f in above)
        return "/tmp" if deep or closed else str(usual)  # noqa: S108 - mkdtemp makes it private

    def run(self, what: Sequence[str | Path]) -> None:
        """Run a program to its end; raises ServerFailed with what it said."""
        done = self._start(what, subprocess.PIPE)
        said, _ = done.communicate()
        if done.returncode:
            text = said.decode(errors="replace").strip()
            raise ServerFailed(f"{Path(what[0]).name} ended with {done.returncode}: {text}")

    def start(self, what: Sequence[str | Path], log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start a program that goes on, and writes to a log."""
        return self._start(what, log)

    def _start(
        self, what: Sequence[str | Path], output: int | IO[bytes]
    ) -> subprocess.Popen[bytes]:
        user, group = self._user or (None, None)
        try:
            return subprocess.Popen(  # noqa: S603 - the programs of a server
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
        """Send a signal to every process; return their numbers."""
        found = self.processes()
        for pid in found:
            caretaker.signal_process(pid, number)
        return found

    def hold(self) -> bool:
        """Stop every process; return whether all stand still, so that none can start another."""
        moving = [pid for pid in self.processes() if not caretaker.stands_still(pid)]
        for pid in moving:
            caretaker.signal_process(pid, signal.SIGSTOP)
        return not moving

    def kill(self) -> None:
        """Kill every process, and return when all are gone."""
        if not caretaker.kill_processes(self.path, self._program):
            raise ServerFailed(f"processes survive being killed: {self.processes()}")

    def clear(self) -> None:
        """End all processes and remove the folder."""
        caretaker.clear(self.path, self._program)
        # The end of its pipe would do, but a fork of this process may hold that open.
        self._caretaker.communicate(b".")


# Nothing of whoever starts a server decides how it behaves.
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
