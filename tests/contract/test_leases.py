"""Leases: which owner holds which job, which owners live, and what happens to jobs of dead ones."""

from __future__ import annotations

from poolhand.contract import Change, Claim, ClaimRequest, Extended, Lease, LogLine
from poolhand.rules import lifecycle
from poolhand.rules.queue.backpressure import bounded
from tests.contract.support import Another, Hand, entries, ids, order, owner, spec


async def lease_of(hand: Hand, name: str) -> Lease | None:
    found = [lease for lease in await hand.store.leases() if lease.owner.id == name]
    return found[0] if found else None


def crashed(hand: Hand, claim: Claim) -> Change:
    """Return the change that retries a job whose process died."""
    job = lifecycle.crash(claim.job, None, True, hand.clock.date, proven=False)
    return Change(job, claim.token)


async def test_an_enrolled_owner_is_listed_by_another_store(hand: Hand, another: Another) -> None:
    await hand.store.enroll(owner("other"))
    leases = await (await another()).leases()
    assert leases == [Lease(owner("hand"), 0, 0), Lease(owner("other"), 0, 0)]


async def test_enrolling_again_changes_nothing(hand: Hand) -> None:
    await hand.start("a")
    await hand.store.extend("hand", [])
    await hand.store.enroll(owner("hand"))
    assert await hand.store.leases() == [Lease(owner("hand"), 1, 1)]


async def test_every_renewal_is_counted(hand: Hand) -> None:
    for count in range(1, 4):
        assert await hand.store.extend("hand", []) == Extended(True)
        lease = await lease_of(hand, "hand")
        assert lease is not None
        assert lease.renewal == count


async def test_a_lease_counts_running_and_stuck_jobs_and_blocked_submitters(hand: Hand) -> None:
    await hand.store.declare(spec(backpressure=bounded(1), slots=2))
    one, two = await hand.start("a"), await hand.start("b")
    await hand.take_in("c")
    assert entries(await hand.add(order("d"))) == ["blocked_submitter"]
    await hand.change(hand.ended(one, stuck=True))
    assert (await hand.store.leases())[0].held == 3
    await hand.finish(two)
    await hand.store.replace(released=[one.token])
    await hand.withdraw("d")
    assert (await hand.store.leases())[0].held == 0


async def test_a_renewal_returns_the_lost_tokens(hand: Hand) -> None:
    await hand.store.enroll(owner("other"))
    kept, done = await hand.start("a"), await hand.start("b")
    await hand.take_in("c")
    (foreign,) = await hand.claim(1, owner="other")
    await hand.finish(done)
    tokens = [10_000, done.token, kept.token, foreign.token]
    answer = await hand.store.extend("hand", tokens)
    assert answer == Extended(True, lost=(10_000, done.token, foreign.token))


async def test_a_renewal_returns_the_tokens_of_cancel_requested_jobs(
    hand: Hand, another: Another
) -> None:
    one, two = await hand.start("a"), await hand.start("b")
    await (await another()).cancel(["b"], "me")
    for _ in range(2):
        answer = await hand.store.extend("hand", [one.token, two.token])
        assert answer == Extended(True, cancel_requested=(two.token,))


async def test_an_unknown_owner_holds_nothing(hand: Hand) -> None:
    assert await hand.store.extend("nobody", [1, 2]) == Extended(False, lost=(1, 2))
    assert await hand.store.extend("nobody", []) == Extended(False)
    assert await hand.store.expire_owner("nobody", 0) == []


async def test_an_owner_that_renewed_its_leases_is_not_expired(hand: Hand) -> None:
    claim = await hand.start("a")
    await hand.store.extend("hand", [claim.token])
    assert await hand.store.expire_owner("hand", 0) == []
    assert (await hand.store.extend("hand", [claim.token])).alive
    await hand.finish(claim)


async def test_expiring_an_owner_returns_its_running_claims(hand: Hand, another: Another) -> None:
    old = [await hand.start("a"), await hand.start("b")]
    other = await another()
    found = await other.expire_owner("hand", 0)
    assert ids(found) == ["a", "b"]
    assert [claim.call_record for claim in found] == [b"brief of a", b"brief of b"]
    assert [claim.slot for claim in found] == [claim.slot for claim in old]
    lease = await lease_of(hand, "hand")
    assert lease is not None
    assert (lease.expired, lease.held) == (True, 2)
    tokens = [claim.token for claim in old]
    assert await hand.store.extend("hand", tokens) == Extended(False, lost=tuple(tokens))
    assert await hand.statuses("a", "b") == "running running"


async def test_writes_of_an_expired_owner_are_refused(hand: Hand) -> None:
    claim = await hand.start("a")
    await hand.store.expire_owner("hand", 0)
    assert await hand.change(hand.ended(claim)) == (False,)
    assert await hand.store.append([LogLine("s", "k", b"late", claim.token)]) == {claim.token}
    await hand.take_in("b")
    assert await hand.claim() == []
    assert entries(await hand.add(order("c"), owner="hand")) == ["accepted"]


async def test_jobs_of_an_expired_owner_run_again_and_then_the_owner_is_deleted(hand: Hand) -> None:
    await hand.store.enroll(owner("heir"))
    await hand.start("a")
    await hand.start("b")
    found = await hand.store.expire_owner("hand", 0)
    (made,) = await hand.change(crashed(hand, found[0]))
    assert made
    lease = await lease_of(hand, "hand")
    assert lease is not None
    assert lease.held == 1
    await hand.change(crashed(hand, found[1]))
    assert await lease_of(hand, "hand") is None
    again = await hand.claim(owner="heir")
    assert ids(again) == ["b", "a"]
    assert [claim.job.attempts for claim in again] == [2, 2]


async def test_an_owner_can_be_expired_again_until_its_jobs_are_replaced(hand: Hand) -> None:
    await hand.start("a")
    await hand.start("b")
    first = await hand.store.expire_owner("hand", 0)
    await hand.change(crashed(hand, first[0]))
    second = await hand.store.expire_owner("hand", 0)
    assert ids(second) == ["b"]
    assert await hand.change(crashed(hand, second[0])) == (True,)
    assert await hand.store.expire_owner("hand", 0) == []


async def test_an_owner_without_claims_is_deleted_at_once_when_expired(hand: Hand) -> None:
    assert await hand.store.expire_owner("hand", 0) == []
    assert await hand.store.leases() == []


async def test_expiring_an_owner_releases_stuck_slots(hand: Hand) -> None:
    await hand.store.declare(spec(slots=1))
    claim = await hand.start("a")
    await hand.change(hand.ended(claim, stuck=True))
    assert await hand.store.expire_owner("hand", 0) == []
    assert (await hand.pool()).running == 0
    assert await hand.store.leases() == []
    await hand.store.replace(released=[claim.token])
    assert (await hand.pool()).running == 0


async def test_an_expired_owner_is_deleted_when_its_last_slot_is_released(hand: Hand) -> None:
    await hand.start("a")
    (found,) = await hand.store.expire_owner("hand", 0)
    assert await hand.change(hand.ended(found, stuck=True)) == (True,)
    lease = await lease_of(hand, "hand")
    assert lease is not None
    assert lease.held == 1
    await hand.store.replace(released=[found.token])
    assert await hand.store.leases() == []


async def test_caps_count_jobs_of_an_expired_owner_until_they_are_replaced(hand: Hand) -> None:
    await hand.store.declare(spec(slots=1))
    await hand.store.enroll(owner("heir"))
    await hand.start("a")
    await hand.take_in("b")
    (found,) = await hand.store.expire_owner("hand", 0)
    assert await hand.claim(owner="heir") == []
    changed = [crashed(hand, found)]
    answer = await hand.store.replace(changed, ClaimRequest("heir", (0, 1)))
    assert ids(answer.claims) == ["a"]


async def test_a_cancel_request_survives_the_death_of_the_worker(hand: Hand) -> None:
    await hand.start("a")
    await hand.store.cancel(["a"], "me")
    (found,) = await hand.store.expire_owner("hand", 0)
    assert await hand.change(crashed(hand, found)) == (True,)
    assert await hand.status("a") == "cancelled"
