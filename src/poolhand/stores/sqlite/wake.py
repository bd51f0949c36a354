"""Hints between the processes on one file, by datagram sockets in a folder beside it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
import tempfile
from collections.abc import Callable, Iterable

from poolhand.contract import Hint
from poolhand.stores.sqlite.place import Rights, is_socket

LONGEST = 100  # bytes in the path of a socket; the kernel allows 104 to 108
NAME = 12  # characters of a socket's own name
DATAGRAM = 4096
ROUNDS = 64  # datagrams read before the loop runs other callbacks


def folder_of(path: str) -> str:
    """Return the folder for the sockets of a file, the same for all processes on it."""
    beside = f"{path}-wake"
    if len(os.fsencode(beside)) + 1 + NAME <= LONGEST:
        return beside
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    return os.path.join(tempfile.gettempdir(), f"poolhand-{name}")


class Wake:
    """Publishes topics to its own subscribers and to every other process on the file.

    Without a socket it serves its own subscribers only: if none can be created there, if other
    users could write to the folder, or if the loop cannot watch sockets.
    """

    def __init__(self, path: str, name: str, rights: Rights | None = None) -> None:
        self._folder = folder_of(path)
        self._rights = rights or Rights(path)
        self._name = name
        self._hints: dict[int, Hint] = {}
        self._last = 0
        self._due: dict[str, None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._socket: socket.socket | None = None

    def open(self) -> None:
        """Listen on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._socket = self._bound()
        if self._socket is None:
            return
        try:
            self._loop.add_reader(self._socket, self._hear)
        except (NotImplementedError, OSError):
            self._hang_up()

    def close(self) -> None:
        """Publish the topics that are due, then stop sending and receiving."""
        if self._loop is None:
            return
        self._deliver()
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._hang_up()
        self._loop = None

    def subscribe(self, hint: Hint) -> Callable[[], None]:
        """Call `hint` on the loop for every topic; return a function that ends that."""
        self._last += 1
        number = self._last
        self._hints[number] = hint

        def end() -> None:
            self._hints.pop(number, None)

        return end

    def publish(self, topics: Iterable[str]) -> None:
        """Publish topics to all processes; those of one loop iteration are sent together."""
        if self._loop is None:
            return
        if not self._due:
            self._loop.call_soon(self._deliver)
        self._due.update(dict.fromkeys(topics))

    def _deliver(self) -> None:
        topics, self._due = self._due, {}
        if not topics:
            return
        self._hint(topics)
        if self._socket is not None:
            self._send("\n".join(topics).encode(errors="replace")[:DATAGRAM])

    def _send(self, datagram: bytes) -> None:
        assert self._socket is not None
        for name in self._peers():
            path = os.path.join(self._folder, name)
            try:
                self._socket.sendto(datagram, path)
            except ConnectionRefusedError:
                # Its process died: a live socket is bound from the moment it is visible.
                _remove(path)
            except OSError:
                # Gone, not writable, or full: a process with unread hints wakes up anyway.
                continue

    def _peers(self) -> list[str]:
        try:
            names = os.listdir(self._folder)
        except OSError:
            return []
        return [name for name in names if name != self._name]

    def _hear(self) -> None:
        topics: dict[str, None] = {}
        for _ in range(ROUNDS):
            try:
                assert self._socket is not None
                datagram = self._socket.recv(DATAGRAM)
            except OSError:
                break
            words = datagram.decode(errors="replace").split("\n")
            topics.update(dict.fromkeys(filter(None, words)))
        self._hint(topics)

    def _hint(self, topics: Iterable[str]) -> None:
        assert self._loop is not None
        for topic in topics:
            for hint in list(self._hints.values()):
                try:
                    hint(topic)
                except Exception as error:
                    self._loop.call_exception_handler(
                        {"message": f"a subscriber of {topic!r} raised", "exception": error}
                    )

    def _bound(self) -> socket.socket | None:
        path = os.path.join(self._folder, self._name)
        try:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        except OSError:
            return None
        made.setblocking(False)
        # Retried: a process that closes removes the folder when it is empty.
        for _ in range(5):
            try:
                if not self._rights.make_folder(self._folder):
                    break
                made.bind(path)
                self._rights.share(path)
            except FileNotFoundError:
                continue
            except OSError:
                break
            return made
        made.close()
        _remove(path)
        return None

    def _hang_up(self) -> None:
        assert self._socket is not None
        self._socket.close()
        self._socket = None
        _remove(os.path.join(self._folder, self._name))
        with contextlib.suppress(OSError):
            os.rmdir(self._folder)


def _remove(path: str) -> None:
    """Remove a socket; leave any other file of that name alone."""
    if is_socket(path):
        with contextlib.suppress(OSError):
            os.unlink(path)
