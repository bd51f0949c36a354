"""Views: pages, counts, and what is deleted in the end."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from poolhand.contract import ClaimRequest, Filter, JobPage, Put, Store
from poolhand.errors import Conflict, UsageError
from poolhand.rules.audit import DROP_DEAD, STREAM
from poolhand.rules.job import Status
from poolhand.rules.lifecycle import Keep
from tests.conditions import WAITS
from tests.contract.support import START, Another, Hand, call_record, ids, over, spec, withdraw


async def pages(hand: Hand, which: Filter, limit: int) -> list[list[str]]:
    """Return the ids of all pages, without the job that was there before, which is the oldest."""
    found = []
    page = await hand.store.find(which, limit=limit)
    found.append(ids(page.jobs))
    while page.after is not None:
        page = await hand.store.find(which, page.after, limit)
        found.append(ids(page.jobs))
    ours = [[id for id in one if id != WAITS] for one in found]
    return [one for one in ours if one] or [[]]


async def test_a_page_shows_the_newest_first(hand: Hand) -> None:
    await hand.take_in(*"abcde")
    assert await pages(hand, Filter(), 2) == [["e", "d"], ["c", "b"], ["a"]]
    assert await pages(hand, Filter(), 5) == [["e", "d", "c", "b", "a"]]
    assert await hand.store.find(Filter(pool="none")) == JobPage(())


async def test_jobs_added_between_pages_do_not_shift_the_pages(
    hand: Hand, another: Another
) -> None:
    other = await another()
    await hand.take_in(*"abcd")
    first = await other.find(Filter(), limit=2)
    await hand.take_in(*"efg")
    second = await other.find(Filter(), first.after, limit=2)
    assert ids(first.jobs) + ids(second.jobs) == ["d", "c", "b", "a"]


async def test_jobs_changed_between_pages_do_not_shift_the_pages(hand: Hand) -> None:
    await hand.take_in(*"abcd")
    first = await hand.store.find(Filter(statuses=(Status.QUEUED,)), limit=2)
    await hand.store.cancel(["d", "b"], "me")
    second = await hand.store.find(Filter(statuses=(Status.QUEUED,)), first.after)
    assert [id for id in ids(second.jobs) if id != WAITS] == ["a"]


async def fill(hand: Hand) -> None:
    await hand.take_in("a", pool="one", key="K", tenant="acme")
    hand.clock.wait(10)
    await hand.take_in("b", pool="one", session="s", user="u")
    hand.clock.wait(10)
    await hand.take_in("c", pool="two", session="s", tenant="acme")
    hand.clock.wait(10)
    await hand.take_in("d", pool="two", delay=5.0, user="u")
    for pool, status in [("one", Status.FAILED), ("two", Status.COMPLETED)]:
        await hand.finish(*await hand.claim(1, (pool,)), status=status)


FILTERS = {
    "all": (Filter(), "d c b a"),
    "pool": (Filter(pool="one"), "b a"),
    "statuses": (Filter(statuses=(Status.QUEUED, Status.SCHEDULED)), "d b"),
    "name": (Filter(name="task"), "d c b a"),
    "no such name": (Filter(name="other"), ""),
    "key": (Filter(key="K"), "a"),
    "empty key": (Filter(key=""), "d c b"),
    "session": (Filter(session="s"), "c b"),
    "tenant": (Filter(tenant="acme"), "c a"),
    "tenant and pool": (Filter(tenant="acme", pool="one"), "a"),
    "dead": (Filter(dead=True), "a"),
    "id prefix": (Filter(id_prefix="c"), "c"),
    "no such id prefix": (Filter(id_prefix="ab"), ""),
    "user": (Filter(user="u"), "d b"),
    "user and status": (Filter(user="u", statuses=(Status.SCHEDULED,)), "d"),
    "since": (Filter(since=START + timedelta(seconds=20)), "d c"),
    "until": (Filter(until=START + timedelta(seconds=20), pool="one"), "b a"),
    "between": (
        Filter(since=START + timedelta(seconds=10), until=START + timedelta(seconds=30)),
        "c b",
    ),
    "since and pool": (Filter(since=START + timedelta(seconds=20), pool="one"), ""),
    "since and status": (
        Filter(since=START + timedelta(seconds=1), statuses=(Status.COMPLETED,)),
        "c",
    ),
    "since and session": (Filter(since=START + timedelta(seconds=20), session="s"), "c"),
    "since and id prefix": (Filter(since=START + timedelta(seconds=20), id_prefix="d"), "d"),
    "never": (Filter(since=START, until=START), ""),
    "not dead": (Filter(dead=False, pool="one"), "b"),
}


async def test_a_filter_selects_jobs_that_match_every_condition(hand: Hand) -> None:
    await fill(hand)
    for name, (which, found) in FILTERS.items():
        assert await pages(hand, which, 100) == [found.split()], name
        counted = await hand.count(which)
        assert sum(counted.values()) == len(found.split()), name
        assert all(counted.values()), name


async def test_time_filters_follow_the_wall_clock_even_when_it_was_set_back(hand: Hand) -> None:
    await hand.take_in("a")
    hand.clock.set_date(3600)
    await hand.take_in("ahead")
    hand.clock.set_date(-3500)
    await hand.take_in("c")
    assert await pages(hand, Filter(since=START + timedelta(seconds=50)), 1) == [["c"], ["ahead"]]
    late = Filter(since=START + timedelta(seconds=200))
    assert await pages(hand, late, 10) == [["ahead"]]
    assert sum((await hand.count(late)).values()) == 1


async def test_pages_of_a_time_follow_each_other(hand: Hand) -> None:
    await hand.take_in(*"abc")
    hand.clock.wait(10)
    await hand.take_in(*"defgh")
    hand.clock.wait(10)
    await hand.take_in(*"ij")
    which = Filter(since=START + timedelta(seconds=10), until=START + timedelta(seconds=20))
    assert await pages(hand, which, 2) == [["h", "g"], ["f", "e"], ["d"]]


async def test_a_text_that_nothing_has_finds_nothing(hand: Hand) -> None:
    await hand.take_in("a", key="a", session="a", tenant="a")
    for text in ("\ud800", "a\0", "\0"):
        await find_nothing(hand.store, text)


async def find_nothing(store: Store, text: str) -> None:
    (nothing, found) = await store.get([text, "a"])
    assert nothing is None
    assert found is not None
    assert await call_record(store, text) is None
    for column in ("pool", "name", "key", "session", "tenant", "user", "id_prefix"):
        which = replace(Filter(), **{column: text})
        assert await store.find(which) == JobPage(())
        assert await store.count(which) == {}
    assert await store.cancel([text], "me") == [None]
    assert await withdraw(store, [text]) == []
    assert (await store.replace((), ClaimRequest(text, (0,)))).claims == ()
    assert (await store.replace((), ClaimRequest("hand", (0,), (text,)))).claims == ()
    assert not (await store.extend(text, [])).alive
    assert await store.expire_owner(text, 0) == []
    assert await store.get_document(text) is None
    assert not await store.put([Put(text, None, 1)])
    assert await store.scan(text) == []
    assert await store.read(text) == []
    assert await store.trim(text, 5) == 0
    with pytest.raises(Conflict, match="is not known"):
        await store.set_pool(text, "me", paused=True)


async def test_a_page_that_there_cannot_be_is_refused(hand: Hand) -> None:
    await hand.take_in("a")
    for page in ({"after": 2**63}, {"after": -1}, {"limit": -1}, {"limit": 2**63}):
        with pytest.raises(UsageError, match="is not allowed"):
            await hand.store.find(Filter(), **page)


async def test_a_cursor_beyond_all_jobs_shows_the_newest(hand: Hand) -> None:
    await hand.take_in("a", "b")
    assert ids((await hand.store.find(Filter(), 2**63 - 1, 2)).jobs) == ["b", "a"]
    assert await hand.store.find(Filter(), 0) == JobPage(())
    assert await hand.store.read("audit", 2**70) == []


async def test_jobs_are_counted_by_status(hand: Hand) -> None:
    await fill(hand)
    one_each = (Status.FAILED, Status.QUEUED, Status.COMPLETED, Status.SCHEDULED)
    assert await hand.count() == dict.fromkeys(one_each, 1)
    assert await hand.store.count(Filter(pool="none")) == {}


async def test_jobs_finished_long_ago_are_pruned(hand: Hand) -> None:
    await hand.finish(await hand.start("old"))
    await hand.finish(await hand.start("dead"), status=Status.FAILED)
    hand.clock.wait(5)
    await hand.finish(await hand.start("new"))
    await hand.take_in("waiting")
    hand.clock.wait(5)
    assert await hand.store.prune(over(10.5)) == 0
    assert await hand.store.prune(over(10.0)) == 2
    assert await pages(hand, Filter(), 100) == [["waiting", "new"]]
    assert await hand.store.get(["old", "dead"]) == [None, None]
    assert await hand.call_record("old") is None
    assert await hand.store.prune(over(0.0)) == 1


async def test_a_prune_is_bounded_and_deletes_the_oldest_first(hand: Hand) -> None:
    for name in "abc":
        await hand.finish(await hand.start(name))
        hand.clock.wait(1)
    assert await hand.store.prune(over(0.0), limit=2) == 2
    assert await pages(hand, Filter(), 100) == [["c"]]


async def test_the_age_of_a_job_does_not_follow_the_wall_clock(hand: Hand) -> None:
    await hand.finish(await hand.start("a"))
    hand.clock.set_date(3600)
    assert await hand.store.prune(over(10.0)) == 0
    hand.clock.set_date(-7200)
    hand.clock.wait(10)
    assert await hand.store.prune(over(10.0)) == 1


async def test_a_stuck_job_is_kept_until_its_slot_is_released(hand: Hand) -> None:
    claim = await hand.start("a")
    await hand.change(hand.ended(claim, stuck=True))
    await hand.finish(await hand.start("b"))
    hand.clock.wait(10)
    assert await hand.store.prune(over(1.0)) == 1
    await hand.store.replace(released=[claim.token])
    assert await hand.store.prune(over(1.0)) == 1


async def test_a_job_is_kept_as_long_as_its_key(hand: Hand) -> None:
    await hand.store.declare(spec(key_ttl=10.0))
    await hand.finish(await hand.start("a", idempotency_key="k"))
    hand.clock.wait(9)
    assert await hand.store.prune(over(1.0)) == 0
    hand.clock.wait(1)
    assert await hand.store.prune(over(1.0)) == 1
    await hand.take_in("b", idempotency_key="k")


async def test_a_pruned_turn_does_not_block_its_session(hand: Hand) -> None:
    claim = await hand.start("a", session="s")
    await hand.take_in("b", session="s")
    await hand.finish(claim)
    assert await hand.store.prune(over(0.0)) == 1
    assert await hand.serve() == ["b"]
    assert await hand.store.cancel(["a"], "me") == [None]


async def kept(hand: Hand) -> list[str]:
    return sorted(id for page in await pages(hand, Filter(), 100) for id in page)


async def test_dead_letters_are_not_pruned_with_results(hand: Hand) -> None:
    await hand.finish(await hand.start("done"))
    await hand.finish(await hand.start("dead"), status=Status.FAILED)
    hand.clock.wait(10)
    assert await hand.store.prune(Keep(results=5.0, dead=20.0)) == 1
    assert await kept(hand) == ["dead"]
    hand.clock.wait(10)
    assert await hand.store.prune(Keep(results=5.0, dead=20.0)) == 1
    assert await kept(hand) == []


async def test_surplus_dead_letters_are_dropped_oldest_first_and_audited(
    hand: Hand,
) -> None:
    for number in range(4):
        await hand.finish(await hand.start(f"done-{number}"))
        await hand.finish(await hand.start(f"dead-{number}"), status=Status.FAILED)
    assert await hand.store.prune(Keep(max_results=3, max_dead=2)) == 3
    assert await kept(hand) == ["dead-2", "dead-3", "done-1", "done-2", "done-3"]
    (line,) = [one for one in await hand.store.read(STREAM) if one.kind == DROP_DEAD]
    assert b"2 dead letters beyond max_dead=2" in line.body
    assert await hand.store.prune(Keep(max_results=3, max_dead=2)) == 0
