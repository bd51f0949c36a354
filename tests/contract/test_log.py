"""The log: streams of lines, numbered without gaps."""

from __future__ import annotations

from datetime import timedelta

from poolhand.contract import LogEntry, LogLine, Put
from tests.contract.support import START, Another, Hand


def lines(stream: str, *kinds: str, token: int | None = None) -> list[LogLine]:
    return [LogLine(stream, kind, kind.encode(), token) for kind in kinds]


async def numbers(hand: Hand, stream: str = "s", after: int = 0) -> list[int]:
    return [line.number for line in await hand.store.read(stream, after)]


async def test_log_lines_are_read_as_they_were_written(hand: Hand, another: Another) -> None:
    assert not await hand.store.append([LogLine("s", "a", b"\x00"), LogLine("s", "b", b"")])
    hand.clock.wait(5)
    assert not await hand.store.append([LogLine("s", "c", b"x")])
    later = START + timedelta(seconds=5)
    assert await (await another()).read("s") == [
        LogEntry(1, START, "a", b"\x00"),
        LogEntry(2, START, "b", b""),
        LogEntry(3, later, "c", b"x"),
    ]
    assert await hand.store.read("none") == []


async def test_every_stream_is_numbered_independently_without_gaps(
    hand: Hand, another: Another
) -> None:
    stores = [hand.store, await another()]
    for n in range(20):
        await stores[n % 2].append([*lines("s", "k"), *lines(f"t{n % 3}", "k", "k")])
    assert await numbers(hand) == list(range(1, 21))
    assert await numbers(hand, "t0") == list(range(1, 15))
    assert await numbers(hand, "t2") == list(range(1, 13))


async def test_a_reader_continues_after_a_number(hand: Hand) -> None:
    await hand.store.append(lines("s", *"abcdefghij"))
    read = hand.store.read
    assert [line.kind for line in await read("s", 7)] == ["h", "i", "j"]
    assert [line.kind for line in await read("s", 3, limit=2)] == ["d", "e"]
    assert await read("s", 10) == []
    assert await read("s", 99) == []


async def test_a_reader_may_filter_by_kind(hand: Hand) -> None:
    await hand.store.append(lines("s", "pool_submit", "job", "pool_drop", "pool_submit_x"))
    read = hand.store.read
    assert [line.number for line in await read("s", kind="pool_")] == [1, 3, 4]
    assert [line.number for line in await read("s", kind="pool_submit")] == [1, 4]
    assert [line.number for line in await read("s", 1, limit=1, kind="pool_")] == [3]
    assert await read("s", kind="%") == []


async def test_lines_below_a_number_are_trimmed_and_the_numbering_continues(hand: Hand) -> None:
    await hand.store.append(lines("s", *"abcdef"))
    assert await hand.store.trim("s", 3) == 2
    assert await numbers(hand) == [3, 4, 5, 6]
    assert await hand.store.trim("s", 3) == 0
    assert await numbers(hand, after=4) == [5, 6]
    await hand.store.append(lines("s", "g"))
    assert await numbers(hand) == [3, 4, 5, 6, 7]


async def test_the_last_line_is_never_trimmed(hand: Hand) -> None:
    await hand.store.append(lines("s", *"abc"))
    assert await hand.store.trim("s", 100) == 2
    assert await numbers(hand) == [3]
    await hand.store.append(lines("s", "d"))
    assert await numbers(hand) == [3, 4]
    assert await hand.store.trim("none", 5) == 0


async def test_lines_are_accepted_while_their_token_is_valid(hand: Hand) -> None:
    claim = await hand.start("a")
    assert await hand.store.append(lines("s", "a", token=claim.token)) == set()
    assert await hand.store.append(lines("s", "b", token=claim.token + 1)) == {claim.token + 1}
    await hand.retry(claim)
    assert await hand.store.append(lines("s", "c", token=claim.token)) == {claim.token}
    (again,) = await hand.claim(1)
    assert await hand.store.append(lines("s", "d", token=again.token)) == set()
    await hand.finish(again)
    assert await hand.store.append(lines("s", "e", token=again.token)) == {again.token}
    assert [line.kind for line in await hand.store.read("s")] == ["a", "d"]
    assert await numbers(hand) == [1, 2]


async def test_a_refused_line_does_not_keep_others_of_its_batch_out(hand: Hand) -> None:
    one, two = await hand.start("a"), await hand.start("b")
    await hand.finish(one)
    lot = [
        *lines("s", "a", "b", token=one.token),
        *lines("s", "c"),
        *lines("t", "d", token=two.token),
        *lines("s", "e", token=two.token),
    ]
    assert await hand.store.append(lot) == {one.token}
    assert [line.kind for line in await hand.store.read("s")] == ["c", "e"]
    assert [line.kind for line in await hand.store.read("t")] == ["d"]
    assert await numbers(hand) == [1, 2]


async def test_the_token_of_a_stuck_job_is_not_valid(hand: Hand) -> None:
    claim = await hand.start("a")
    await hand.change(hand.ended(claim, stuck=True))
    assert await hand.store.append(lines("s", "a", token=claim.token)) == {claim.token}


async def test_log_lines_and_a_change_are_written_together_or_not_at_all(hand: Hand) -> None:
    one, two = await hand.start("a"), await hand.start("b")
    good = hand.ended(one, log=tuple(lines("s", "a", "b")))
    bad = hand.ended(two, log=tuple(lines("s", "x")), documents=(Put("d", b"", expect=5),))
    assert await hand.change(good, bad) == (True, False)
    assert [line.kind for line in await hand.store.read("s")] == ["a", "b"]


async def test_an_empty_append_is_accepted(hand: Hand) -> None:
    assert await hand.store.append([]) == set()
