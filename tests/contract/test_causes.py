"""Causes: jobs that were set aside wait for a named cause and do not delay other claims."""

from __future__ import annotations

from collections.abc import Sequence

from poolhand.contract import Added, Change, Claim, ClaimRequest
from poolhand.rules import lifecycle
from poolhand.rules.queue.backpressure import bounded
from poolhand.rules.queue.strategy import fair_round_robin
from tests.contract.support import Hand, ids, spec


async def set_aside(hand: Hand, claims: Sequence[Claim], cause: str = "task:a") -> None:
    changes = [Change(lifecycle.set_aside(one.job, cause), one.token) for one in claims]
    assert all(await hand.change(*changes))


async def claim(
    hand: Hand,
    *causes: str,
    count: int = 100,
    pools: tuple[str, ...] | None = None,
    refused: tuple[str, ...] = (),
) -> list[Claim]:
    wanted = ClaimRequest("hand", tuple(range(count)), pools, frozenset(causes), frozenset(refused))
    return list((await hand.store.replace((), wanted)).claims)


async def test_a_parked_job_is_claimed_only_by_its_cause(hand: Hand) -> None:
    await hand.take_in("a", "b")
    await set_aside(hand, await hand.claim(1))
    (stored,) = await hand.store.get(["a"])
    assert stored is not None
    assert (stored.job.status, stored.job.waits_for) == ("scheduled", "task:a")
    assert (stored.job.attempts, stored.job.run_at) == (0, None)
    assert ids(await claim(hand, "task:b")) == ["b"]
    assert await claim(hand) == []
    (found,) = await claim(hand, "task:a", "task:b")
    assert (found.job.id, found.job.attempts, found.job.waits_for) == ("a", 1, None)
    assert found.call_record == b"brief of a"
    await hand.finish(found)
    assert await claim(hand, "task:a") == []


async def test_a_parked_job_is_not_queued_again_by_time(hand: Hand) -> None:
    await hand.take_in("a")
    await set_aside(hand, await hand.claim())
    hand.clock.wait(1_000_000)
    assert (await hand.store.promote()).next_in is None
    assert await hand.claim() == []
    assert (await hand.pool()).scheduled == 1


async def test_parked_jobs_are_claimed_before_the_queue_oldest_first_up_to_the_slots(
    hand: Hand,
) -> None:
    await hand.take_in("a", "b", "c", "d")
    claims = await hand.claim(3)
    await set_aside(hand, claims[1:], "task:x")
    await set_aside(hand, claims[:1], "task:y")
    assert ids(await claim(hand, "task:x", "task:y", count=2)) == ["a", "b"]
    assert ids(await claim(hand, "task:x", "task:y")) == ["c", "d"]


async def test_parked_jobs_obey_the_cap_the_pause_and_the_requested_pools(hand: Hand) -> None:
    await hand.store.declare(spec(slots=2))
    await hand.take_in("a", "b", "c")
    await set_aside(hand, await hand.claim(2))
    await hand.store.set_pool("pool", "me", paused=True)
    assert await claim(hand, "task:a") == []
    await hand.store.set_pool("pool", "me", paused=False)
    assert await claim(hand, "task:a", pools=("other",)) == []
    found = await claim(hand, "task:a", count=10)
    assert ids(found) == ["a", "b"]
    await hand.finish(found[0])
    assert ids(await claim(hand, "task:a")) == ["c"]


async def test_a_parked_job_gives_its_key_permit_back_and_needs_one_to_run(hand: Hand) -> None:
    await hand.store.declare(spec(max_per_key=1))
    await hand.take_in("a", "b", key="k")
    await set_aside(hand, await hand.claim())
    assert await hand.status("b") == "queued"
    running = await hand.claim()
    assert ids(running) == ["b"]
    assert await claim(hand, "task:a") == []
    await hand.finish(*running)
    assert ids(await claim(hand, "task:a")) == ["a"]


async def test_a_parked_key_without_a_permit_does_not_block_other_keys_of_the_cause(
    hand: Hand,
) -> None:
    await hand.store.declare(spec(max_per_key=1))
    await hand.take_in("a1", "a2", "a3", "a4", key="noisy")
    await hand.take_in("b1", "b2", key="quiet")
    await hand.take_in("c1")
    for _ in range(4):
        await set_aside(hand, await hand.claim())
    assert (await hand.store.causes()) == {"pool": {"task:a": 7}}
    assert ids(await claim(hand, "task:a", count=1)) == ["a1"]
    # The three jobs that are older than b1 have no permit.
    assert ids(await claim(hand, "task:a", count=2)) == ["b1", "c1"]
    assert await claim(hand, "task:a", count=2) == []


async def test_a_wildcard_version_claims_parked_calls_except_the_refused_versions(
    hand: Hand,
) -> None:
    await hand.take_in("a", "b", "c")
    first, second, third = await hand.claim()
    await set_aside(hand, [first], "call:1111/a")
    await set_aside(hand, [second], "call:2222/a")
    await set_aside(hand, [third], "call:1111/b")
    any_version = "call:*/a"
    assert ids(await claim(hand, any_version, refused=("call:1111/a",))) == ["b"]
    assert await claim(hand, any_version, refused=("call:1111/a",)) == []
    assert ids(await claim(hand, any_version)) == ["a"]
    assert ids(await claim(hand, "call:*/b")) == ["c"]


async def test_a_parked_job_keeps_its_session_held(hand: Hand) -> None:
    await hand.take_in("a", "b", session="s")
    await set_aside(hand, await hand.claim())
    assert await hand.status("b") == "blocked"
    (found,) = await claim(hand, "task:a")
    await hand.finish(found)
    assert await hand.status("b") == "queued"


async def test_a_parked_job_gives_back_its_turn_in_the_fair_lane(hand: Hand) -> None:
    await hand.store.declare(spec(queue=fair_round_robin("tenant_id")))
    await hand.take_in("a1", "a2", "a3", key="a")
    await hand.take_in("b1", "b2", key="b")
    (first,) = await hand.claim(1)
    await set_aside(hand, [first])
    # As if a1 had not taken its turn: key a comes before key b again.
    assert ids(await hand.claim(3)) == ["a2", "b1", "a3"]


async def test_a_parked_job_can_be_cancelled_and_can_expire(hand: Hand) -> None:
    await hand.take_in("a")
    await hand.take_in("b", expires=10.0)
    await set_aside(hand, await hand.claim())
    await hand.store.cancel(["a"], "me")
    hand.clock.wait(11)
    await hand.store.promote()
    assert [await hand.status("a"), await hand.status("b")] == ["cancelled", "expired"]
    assert await claim(hand, "task:a") == []
    assert (await hand.pool()).scheduled == 0


async def test_a_parked_job_counts_towards_the_queue_bound(hand: Hand) -> None:
    await hand.store.declare(spec(backpressure=bounded(1, "drop_newest"), slots=1))
    await hand.take_in("a")
    await set_aside(hand, await hand.claim())
    await hand.take_in("b")
    await hand.claim()
    answer = await hand.submit("c")
    assert isinstance(answer, Added)
    assert answer.entry == "rejected"


async def test_causes_are_counted_by_pool(hand: Hand) -> None:
    assert await hand.store.causes() == {}
    await hand.take_in("a", "b", "c")
    await hand.take_in("d", pool="other")
    claims = {one.job.id: one for one in await hand.claim()}
    await set_aside(hand, [claims["a"], claims["b"], claims["d"]])
    await set_aside(hand, [claims["c"]], "task:c")
    assert await hand.store.causes() == {
        "other": {"task:a": 1},
        "pool": {"task:a": 2, "task:c": 1},
    }


async def test_woken_jobs_are_promoted_oldest_first_and_run_normally(hand: Hand) -> None:
    await hand.take_in("a", "b", "c")
    await set_aside(hand, await hand.claim())
    assert await hand.store.wake("task:a", "me", limit=2) == 2
    assert await hand.status("a") == "scheduled"
    assert (await hand.store.promote()).moved == 2
    assert ids(await hand.claim()) == ["a", "b"]
    (stored,) = await hand.store.get(["a"])
    assert stored is not None
    assert stored.job.waits_for is None
    assert await hand.store.wake("task:a", "me") == 1
    assert await hand.store.wake("task:b", "me") == 0


async def test_a_parked_job_that_returns_after_its_expiry_expires_in_the_same_write(
    hand: Hand,
) -> None:
    await hand.store.declare(spec(slots=2))
    await hand.take_in("a", expires=10.0)
    await hand.take_in("b", "c")
    (late,) = await hand.claim(1)
    hand.clock.wait(11)
    back = Change(lifecycle.hand_back(late.job), late.token)
    replaced = await hand.store.replace([back], ClaimRequest("hand", (0, 1)))
    assert ids(replaced.claims) == ["b", "c"]
    assert await hand.status("a") == "expired"


async def test_a_wildcard_cause_matches_a_task_in_any_package(hand: Hand) -> None:
    await hand.take_in("a", "b", "c", "d")
    longer, shorter, keyed, other = await hand.claim()
    await set_aside(hand, [longer], "task:work.proj.agents.f")
    await set_aside(hand, [shorter], "task:agents.f")
    await set_aside(hand, [keyed], "key:k/proj.agents.f")
    await set_aside(hand, [other], "task:proj.other.f")
    assert await claim(hand, "task:proj.agents.f") == []
    assert ids(await claim(hand, "task:*.proj.agents.f", "task:agents.f")) == ["a", "b"]
    assert ids(await claim(hand, "task:*.agents.f", "key:k/*.agents.f")) == ["c"]
    assert ids(await claim(hand, "task:*.other.f")) == ["d"]
