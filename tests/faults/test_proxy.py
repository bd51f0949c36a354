"""The proxy: each fault affects a connection when it is set, and not before."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from threading import Event, Thread
from typing import Any

import asyncpg
import pytest

from tests.faults.crew import until
from tests.faults.messages import Exchange, Way
from tests.faults.proxy import Proxy
from tests.private_servers.postgres_server import PostgresServer
from tests.private_servers.programs import ServerMissing

LIMIT = 20.0
SHORT = 0.2  # seconds in which held data does not arrive


class Echo:
    """A server that echoes everything, and reports when a connection has ended."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.heard = bytearray()
        self.ended = Event()
        Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with closing(connection):
            try:
                while data := connection.recv(65536):
                    self.heard += data
                    connection.sendall(data)
            except OSError:
                pass
        self.ended.set()

    def close(self) -> None:
        if self._listener.fileno() >= 0:
            # Wakes the thread that waits there; closing alone would not.
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", echo.port, seed=7) as made:
        yield made


def connect(proxy: Proxy) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", proxy.port), LIMIT)
    client.settimeout(LIMIT)
    return client


def receive(client: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = client.recv(65536)
        assert piece, f"closed after {data!r}"
        data += piece
    return data


def say(client: socket.socket, text: bytes) -> bytes:
    client.sendall(text)
    return receive(client, len(text))


def hears_nothing(client: socket.socket) -> bool:
    client.settimeout(SHORT)
    try:
        return client.recv(1) is None
    except TimeoutError:
        return True
    finally:
        client.settimeout(LIMIT)


def test_bytes_and_eof_pass_in_both_directions(proxy: Proxy, echo: Echo) -> None:
    much = bytes(range(256)) * 4000
    with closing(connect(proxy)) as client:
        assert say(client, b"hello") == b"hello"
        Thread(target=client.sendall, args=(much,), daemon=True).start()
        assert receive(client, len(much)) == much
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""
    assert echo.ended.wait(LIMIT)


def test_a_cut_closes_both_ends_and_new_connections_pass(proxy: Proxy, echo: Echo) -> None:
    with closing(connect(proxy)) as client:
        say(client, b"hello")
        assert proxy.cut() == 1
        assert client.recv(1) == b""
        assert echo.ended.wait(LIMIT)
    with closing(connect(proxy)) as client:
        assert say(client, b"again") == b"again"


def test_a_reset_is_seen_as_a_connection_reset(proxy: Proxy) -> None:
    with closing(connect(proxy)) as client:
        say(client, b"hello")
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_delayed_bytes_arrive_late_and_in_order(proxy: Proxy) -> None:
    with closing(connect(proxy)) as client:
        proxy.delay(2 * SHORT, Way.DOWN)
        client.sendall(b"one")
        assert hears_nothing(client)
        proxy.delay(0.0)
        client.sendall(b"two")
        assert receive(client, 6) == b"onetwo"


def test_a_half_open_connection_is_silent_and_stays_open(proxy: Proxy, echo: Echo) -> None:
    with closing(connect(proxy)) as client, closing(connect(proxy)) as gone:
        say(client, b"hello")
        say(gone, b"hello")
        proxy.half_open()
        client.sendall(b"anybody?")
        gone.close()
        assert hears_nothing(client)
        assert not echo.ended.is_set(), "over a dead line nobody hears of an end"
        assert b"anybody?" not in echo.heard
        with closing(connect(proxy)) as other:
            assert say(other, b"new") == b"new"
        proxy.mend()
        assert receive(client, 8) == b"anybody?"
        assert echo.ended.wait(LIMIT)


def test_new_connections_to_a_half_open_proxy_get_no_answer(proxy: Proxy) -> None:
    proxy.half_open(new=True)
    with closing(connect(proxy)) as client:
        client.sendall(b"hello")
        assert hears_nothing(client)
        proxy.mend()
        assert receive(client, 5) == b"hello"


def test_one_way_passes_bytes_in_one_direction_only(proxy: Proxy, echo: Echo) -> None:
    with closing(connect(proxy)) as client:
        say(client, b"hello")
        proxy.one_way(Way.UP)
        client.sendall(b"up")
        until("the server heard it", lambda: echo.heard.endswith(b"up"))
        assert hears_nothing(client)
        proxy.one_way(Way.DOWN)
        assert receive(client, 2) == b"up"
        client.sendall(b"again")
        assert hears_nothing(client)
        assert not echo.heard.endswith(b"again")


def test_corrupted_bytes_depend_on_the_seed(echo: Echo) -> None:
    def spoiled(seed: int) -> bytes:
        with Proxy("127.0.0.1", echo.port, seed) as proxy, closing(connect(proxy)) as client:
            proxy.corrupt(10, Way.UP)
            return say(client, b"x" * 100)

    assert spoiled(7) == spoiled(7)
    assert spoiled(7) != spoiled(8)
    assert 0 < sum(byte != ord("x") for byte in spoiled(7)) < 50


def test_refused_clients_can_connect_again_at_the_same_port(proxy: Proxy) -> None:
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    proxy.mend()
    with closing(connect(proxy)) as client:
        assert say(client, b"again") == b"again"


def test_with_accepts_a_refused_client_is_accepted_and_closed_at_once(proxy: Proxy) -> None:
    proxy.refuse(accepts=True)
    with closing(connect(proxy)) as client:
        assert client.recv(1) == b""
    proxy.mend()
    with closing(connect(proxy)) as client:
        assert say(client, b"again") == b"again"


def test_a_missing_server_closes_the_connection(proxy: Proxy, echo: Echo) -> None:
    echo.close()
    with closing(connect(proxy)) as client:
        assert client.recv(1) == b""


def framed(kind: str, body: bytes) -> bytes:
    return kind.encode() + struct.pack("!I", len(body) + 4) + body


def test_messages_are_cut_out_of_pieces_of_any_size() -> None:
    opening = struct.pack("!II", 8, 80877103) + struct.pack("!II", 9, 196608) + b"\0"
    asked = framed("P", b"name\0COMMIT\0\0\0") + framed("B", b"\0name\0") + framed("S", b"")
    exchange = Exchange()
    seen = [
        (message.kind, exchange.statement(message))
        for byte in opening + asked
        for message in exchange.cut_out(Way.UP, bytes([byte]))
    ]
    assert seen == [("", ""), ("", ""), ("P", ""), ("B", "COMMIT"), ("S", "")]
    answers = b"N" + framed("Z", b"I") + framed("C", b"BEGIN\0") + framed("Z", b"T")
    assert [one.kind for one in exchange.cut_out(Way.DOWN, answers)] == ["", "Z", "C", "Z"]
    assert (exchange.asked, exchange.answered) == (2, 2)
    assert exchange.idle_in_transaction
    list(exchange.cut_out(Way.UP, framed("Q", b"COMMIT\0")))
    assert not exchange.idle_in_transaction, "its turn"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    try:
        with PostgresServer(durable=False) as made:
            yield made
    except ServerMissing as missing:
        pytest.skip(f"NOT TESTED: {missing}")


@pytest.fixture
def wire(server: PostgresServer) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", server.port, watches=True) as made:
        yield made


async def rows(server: PostgresServer) -> list[int]:
    direct = await asyncpg.connect(server.url)
    try:
        return [row["n"] for row in await direct.fetch("SELECT n FROM note ORDER BY n")]
    finally:
        await direct.close()


async def connected(wire: Proxy, server: PostgresServer) -> Any:
    """Return a connection through the proxy to a database with an empty table."""
    connection = await asyncpg.connect(wire.through(server.url))
    await connection.execute("DROP TABLE IF EXISTS note; CREATE TABLE note (n int)")
    return connection


@pytest.mark.slow
@pytest.mark.parametrize(("after", "kept"), [(True, [1, 2, 3]), (False, [1, 2])])
async def test_a_connection_is_cut_before_or_after_a_commit(
    server: PostgresServer, wire: Proxy, after: bool, kept: list[int]
) -> None:
    asked: list[bool] = []

    def when() -> bool:
        asked.append(True)
        return len(asked) > 1

    connection = await connected(wire, server)
    trap = (wire.cut_after if after else wire.cut_before)("^COMMIT", skip=1, when=when)
    for number in (1, 2):
        async with connection.transaction():
            await connection.execute("INSERT INTO note VALUES ($1)", number)
    assert not trap.sprung.is_set()
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("INSERT INTO note VALUES ($1)", 3)
    assert wire.idle_in_transaction
    with pytest.raises((asyncpg.PostgresConnectionError, ConnectionError)):
        await transaction.commit()
    assert await asyncio.to_thread(trap.sprung.wait, LIMIT)
    assert trap.tag == ("COMMIT" if after else "")
    assert await rows(server) == kept
    assert connection.is_closed()
    again = await connected(wire, server)
    await again.close()


@pytest.mark.slow
async def test_a_prepared_statement_is_cut_after_it_has_run(
    server: PostgresServer, wire: Proxy
) -> None:
    connection = await connected(wire, server)
    insert = await connection.prepare("INSERT INTO note VALUES ($1)")
    await insert.fetch(1)
    trap = wire.cut_after("insert into note")
    with pytest.raises((asyncpg.PostgresConnectionError, ConnectionError)):
        await insert.fetch(2)
    assert trap.tag == "INSERT 0 1"
    assert connection.is_closed()
    assert await rows(server) == [1, 2]


def test_a_client_that_connects_during_refuse_leaves_no_open_socket(echo: Echo) -> None:
    """A socket that was accepted and forgotten is a warning, which is an error here."""
    for _ in range(20):
        with Proxy("127.0.0.1", echo.port) as proxy:
            crowd = Thread(target=knock, args=(proxy.port, 20))
            crowd.start()
            for _ in range(5):
                proxy.refuse()
                proxy.mend()
            crowd.join(LIMIT)
    gc.collect()


def knock(port: int, times: int) -> None:
    for _ in range(times):
        try:
            socket.create_connection(("127.0.0.1", port), LIMIT).close()
        except OSError:
            continue
