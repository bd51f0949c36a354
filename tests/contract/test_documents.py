"""Documents: small values under keys, with versions; all are written or none."""

from __future__ import annotations

import pickle

import pytest

from poolhand.contract import LogLine, Put
from poolhand.rules.streams import streams_of_session
from tests.contract.support import Another, Hand, document, over


async def test_a_document_is_read_as_it_was_written(hand: Hand, another: Another) -> None:
    assert await hand.store.get_document("a") is None
    versions = await hand.store.put([Put("a", b"\x00one"), Put("b", b"")])
    assert versions is not None
    other = await another()
    assert await document(other, "a") == (b"\x00one", versions[0])
    assert await document(other, "b") == (b"", versions[1])


async def test_a_document_can_be_pickled(hand: Hand) -> None:
    await hand.store.put([Put("a", b"one")])
    found = await hand.store.get_document("a")
    assert found is not None
    assert pickle.loads(pickle.dumps(found)) == found  # noqa: S301


async def test_log_lines_and_documents_are_written_together_or_not_at_all(hand: Hand) -> None:
    line = LogLine("stream", "kind", b"body")
    assert await hand.store.put([Put("a", b"1", 0)], None, [line]) is not None
    assert await hand.store.put([Put("a", b"2", 0)], None, [line]) is None
    assert await hand.store.put([Put("a", b"2")], 4711, [line]) is None
    assert [one.body for one in await hand.store.read("stream")] == [b"body"]


async def test_every_write_is_counted(hand: Hand) -> None:
    before = await first(hand, "a") - 1
    for version in range(before + 2, before + 5):
        assert await hand.store.put([Put("a", str(version).encode())])
        assert await hand.document("a") == (str(version).encode(), version)


async def first(hand: Hand, key: str, value: bytes = b"first") -> int:
    """Write a document that does not exist; return its version, which is 1 in a new store."""
    wrote = await hand.store.put([Put(key, value, expect=0)])
    assert wrote is not None
    return wrote[0]


async def test_a_write_returns_the_versions_it_wrote(hand: Hand) -> None:
    wrote = await hand.store.put([Put("a", b"1"), Put("b", b"1"), Put("a", b"2")])
    assert wrote is not None
    one = wrote[0]  # 1 in a new store, more where documents were deleted before
    assert wrote == (one, one, one + 1)
    await hand.store.put([Put("a", None)])
    wrote = await hand.store.put([Put("c", b"1"), Put("b", b"2"), Put("c", b"2")])
    assert wrote == (one + 2, one + 1, one + 3)
    assert await hand.document("c") == (b"2", one + 3)
    assert await hand.store.put([]) == ()


async def test_a_write_can_ask_for_a_version(hand: Hand) -> None:
    put = hand.store.put
    assert not await put([Put("a", b"x", expect=1)])
    one = await first(hand, "a", b"one")
    assert not await put([Put("a", b"x", expect=0)])
    assert await put([Put("a", b"two", expect=one)])
    assert not await put([Put("a", b"x", expect=one)])
    assert await hand.document("a") == (b"two", one + 1)


async def test_documents_are_written_all_or_none(hand: Hand) -> None:
    one = await first(hand, "b", b"old")
    wrong = one + 6
    assert not await hand.store.put([Put("a", b"x"), Put("b", b"x", expect=wrong), Put("c", b"x")])
    assert await hand.store.get_document("a") is None
    assert await hand.document("b") == (b"old", one)
    assert await hand.scan() == ["b"]


async def test_a_key_may_be_written_twice_at_once(hand: Hand) -> None:
    one = await first(hand, "b")
    assert await hand.store.put([Put("a", b"one", expect=0), Put("a", b"two", expect=one)])
    assert await hand.document("a") == (b"two", one + 1)
    assert not await hand.store.put([Put("a", b"x"), Put("a", b"x", expect=one + 1)])


async def test_one_of_many_concurrent_writers_writes(hand: Hand, another: Another) -> None:
    stores = [hand.store, await another()]
    won = [await stores[n % 2].put([Put("leader", b"%d" % n, expect=0)]) for n in range(6)]
    assert won[0] is not None
    assert won[1:] == [None] * 5
    assert await hand.document("leader") == (b"0", *won[0])


async def test_a_deleted_document_can_be_written_again(hand: Hand) -> None:
    one = await first(hand, "a", b"one")
    await hand.store.put([Put("b", b"one")])
    assert not await hand.store.put([Put("a", None, one + 1)])
    assert await hand.store.put([Put("a", None, one)]) == (0,)
    assert not await hand.store.put([Put("a", None, one)])
    assert await hand.store.put([Put("a", None), Put("b", None)]) == (0, 0)
    assert await hand.scan() == []
    assert await hand.store.put([Put("a", b"again", expect=0)])
    assert await hand.document("a") == (b"again", one + 1)


async def test_a_document_is_gone_once_its_ttl_has_passed(hand: Hand) -> None:
    one = await first(hand, "b", b"long")
    await hand.store.put([Put("a", b"short", ttl=10.0)])
    hand.clock.wait(9)
    assert await hand.document("a") == (b"short", one)
    hand.clock.wait(1)
    assert await hand.store.get_document("a") is None
    assert await hand.scan() == ["b"]
    assert not await hand.store.put([Put("a", None, one)])
    assert await hand.store.put([Put("a", b"new", expect=0)])
    assert await hand.document("a") == (b"new", one + 1)


async def test_the_remaining_ttl_of_a_document_follows_the_store_clock(hand: Hand) -> None:
    await hand.store.put([Put("a", b"", ttl=10.0), Put("b", b"")])
    hand.clock.wait(4)
    short, long = await hand.store.get_document("a"), await hand.store.get_document("b")
    assert short is not None
    assert long is not None
    assert short.expires_in == pytest.approx(6.0, abs=0.5)
    assert long.expires_in is None
    await hand.store.put([Put("a", b"", ttl=10.0)])
    anew = await hand.store.get_document("a")
    assert anew is not None
    assert anew.expires_in == pytest.approx(10.0, abs=0.5)


async def test_a_key_may_be_deleted_and_written_at_once(hand: Hand) -> None:
    one = await first(hand, "a")
    wrote = await hand.store.put([Put("a", None, one), Put("a", b"two", expect=0)])
    assert wrote == (0, one + 1)
    assert await hand.document("a") == (b"two", one + 1)
    assert await hand.store.put([Put("a", b"three"), Put("a", None)]) == (one + 2, 0)
    assert await hand.document("a") is None
    assert not await hand.store.put([Put("b", b"x"), Put("a", None, one + 1)])
    assert await hand.document("b") is None


@pytest.mark.parametrize("end", ["deleted", "over", "swept"])
async def test_no_version_of_a_key_is_used_twice(hand: Hand, another: Another, end: str) -> None:
    store, other = hand.store, await another()
    wrote = await store.put([Put("b", b"1"), Put("b", b"2"), Put("b", b"3")])
    assert wrote is not None
    seen: set[int] = set()
    for _ in range(4):
        ttl = None if end == "deleted" else 1.0
        assert await store.put([Put("a", b"1", 0, ttl), Put("a", b"2", None, ttl)])
        found = await other.get_document("a")
        assert found is not None
        assert not {found[1], found[1] - 1} & seen
        seen |= {found[1], found[1] - 1}
        if end == "deleted":
            assert await other.put([Put("a", None, found[1])])
        hand.clock.wait(1)
        if end == "swept":
            await other.prune(over(0.0))
        assert not await store.put([Put("a", b"late", found[1])])
    assert await document(store, "b") == (b"3", wrote[2])


async def test_every_write_resets_the_ttl(hand: Hand) -> None:
    await hand.store.put([Put("a", b"", ttl=10.0), Put("b", b"", ttl=10.0)])
    hand.clock.wait(9)
    await hand.store.put([Put("a", b"", ttl=10.0), Put("b", b"")])
    hand.clock.set_date(3600)
    hand.clock.wait(9)
    assert await hand.scan() == ["a", "b"]
    hand.clock.wait(1)
    assert await hand.scan() == ["b"]


async def test_an_expired_document_can_be_pruned_and_written_again(hand: Hand) -> None:
    await hand.store.put([Put("a", b"", ttl=1.0), Put("b", b"", ttl=5.0)])
    hand.clock.wait(2)
    await hand.store.prune(over(0.0))
    assert await hand.scan() == ["b"]
    assert await hand.store.put([Put("a", b"", expect=0)])


async def test_a_scan_gives_keys_in_their_order_page_by_page(hand: Hand) -> None:
    names = ["s/b", "s/a", "t/a", "s", "s/ä", "s/a/1", "r"]
    await hand.store.put([Put(name, b"") for name in names])
    scan = hand.store.scan
    assert await scan("s/") == ["s/a", "s/a/1", "s/b", "s/ä"]
    assert await scan("s/", limit=2) == ["s/a", "s/a/1"]
    assert await scan("s/", after="s/a/1", limit=2) == ["s/b", "s/ä"]
    assert await scan("s/", after="s/ä") == []
    assert await hand.scan() == sorted(names)
    assert await scan("none") == []


async def test_a_scan_prefix_is_matched_literally(hand: Hand) -> None:
    await hand.store.put([Put(name, b"") for name in ["a%b", "a_b", "aXb", "a*b", "A%b"]])
    assert await hand.store.scan("a%") == ["a%b"]
    assert await hand.store.scan("a_") == ["a_b"]
    assert await hand.store.scan("a*") == ["a*b"]


async def test_documents_and_a_change_are_written_together_or_not_at_all(hand: Hand) -> None:
    one, two = await hand.start("a"), await hand.start("b")
    old = await first(hand, "x", b"old")
    good = hand.ended(one, documents=(Put("x", b"new", expect=old), Put("y", b"")))
    bad = hand.ended(two, documents=(Put("z", b""), Put("x", b"late", expect=old)))
    assert await hand.change(good, bad) == (True, False)
    assert await hand.document("x") == (b"new", old + 1)
    assert await hand.scan() == ["x", "y"]
    assert await hand.statuses("a", "b") == "completed running"
    assert await hand.change(hand.ended(two)) == (True,)


async def test_documents_are_written_while_the_token_is_valid(hand: Hand) -> None:
    claim = await hand.start("a")
    wrote = await hand.store.put([Put("d", b"1")], claim.token)
    assert wrote is not None
    await hand.retry(claim)
    assert not await hand.store.put([Put("d", b"late"), Put("e", b"late")], claim.token)
    assert await hand.document("d") == (b"1", *wrote)
    assert await hand.store.get_document("e") is None


async def test_the_streams_of_a_session_are_pruned_with_its_document(hand: Hand) -> None:
    key, *others = streams_of_session("acme", "s/1")
    await hand.store.put([Put(key, b"", ttl=10.0), Put("other", b"", ttl=10.0)])
    await hand.store.append([LogLine(name, "kind", b"") for name in (key, *others, "other", "s")])
    await hand.store.prune(over(0.0))
    assert len(await hand.store.read(key)) == 1
    hand.clock.wait(11.0)
    await hand.store.prune(over(0.0))
    assert [await hand.store.read(name) for name in (key, *others)] == [[], [], []]
    assert [len(await hand.store.read(name)) for name in ("other", "s")] == [1, 1]
