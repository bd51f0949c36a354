"""Which turns a busy session accepts."""

from __future__ import annotations

from datetime import UTC, datetime

from poolhand.rules.job import Job, Status
from poolhand.rules.queue.gates import may_use, wrong_owner
from poolhand.rules.streams import session_of

AT = datetime(2030, 1, 1, tzinfo=UTC)


def turn(id: str, session: str | None, user: str | None, tenant: str | None = None) -> Job:
    return Job(
        id=id,
        pool="pool",
        pool_id="",
        status=Status.QUEUED,
        submitted_at=AT,
        session=session,
        tenant=tenant,
        user=user,
    )


def test_only_its_own_user_may_use_a_session() -> None:
    assert may_use("ana", "ana")
    assert may_use(None, None)
    assert not may_use("ana", "bob")
    assert not may_use("ana", None)
    assert not may_use(None, "ana")


def test_the_first_turn_by_another_user_is_returned() -> None:
    owners = {session_of(None, "s"): "ana", session_of("t", "s"): None}
    fine = [turn("a", "s", "ana"), turn("b", None, "bob"), turn("c", "s", None, "t")]
    assert wrong_owner(fine, owners) is None
    bob = turn("d", "s", "bob")
    assert wrong_owner([*fine, bob], owners) is bob
    ana = turn("e", "s", "ana", "t")
    assert wrong_owner([*fine, ana, bob], owners) is ana


def test_a_new_session_belongs_to_the_user_of_its_first_turn() -> None:
    first, again, other = (turn(id, "new", user) for id, user in ("aX", "bX", "cY"))
    assert wrong_owner([first, again], {}) is None
    assert wrong_owner([first, again, other], {}) is other
    assert wrong_owner([other, first], {}) is first
