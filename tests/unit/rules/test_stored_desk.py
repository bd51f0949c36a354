"""The desk of a stored pool: trial questions, and rules that change."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolhand.rules.job import Status
from poolhand.rules.queue.backpressure import (
    OnFull,
    Policy,
    bounded,
    fail_fast,
    ring_buffer,
    unbounded,
)
from poolhand.rules.queue.desk import Admitted, Joined
from poolhand.rules.queue.entry import Entry, Window
from poolhand.rules.queue.idempotency import IdempotencyKeys
from poolhand.rules.queue.stored_desk import StoredDesk, may_refuse
from poolhand.rules.queue.strategy import Strategy, fair_round_robin, fifo, lifo, priority
from tests.oracle.trial import Trial
from tests.unit.rules.floor import Floor, names, new_entry

FAIL = OnFull.FAIL_SUBMITTER
REFUSING = st.sampled_from(
    [
        *[fail_fast()] * 4,
        *[bounded(n, how) for n in (1, 2, 4) for how in (FAIL, OnFull.BLOCK_SUBMITTER)],
    ]
)
NEWCOMER = st.fixed_dictionaries(
    {
        "key": st.sampled_from("AB"),
        "priority": st.integers(0, 2),
        "session": st.sampled_from([None, None, "s", "t"]),
        "idempotency_key": st.sampled_from([None, None, "k", "l"]),
        "opens_in": st.sampled_from([None, None, 0.0, 5.0]),
    }
)


def floor(strategy: Strategy, policy: Policy, **options: Any) -> Floor:
    """Return a floor with the desk of a stored pool."""
    made = Floor(strategy, policy, **options)
    keys: IdempotencyKeys[Entry] = IdempotencyKeys(1000.0, 1000)
    slots, cap = options.get("slots", 1), options.get("max_per_key")
    made.desk = StoredDesk(strategy, policy, slots, keys, cap)
    return made


def kept(floor: Floor) -> StoredDesk[Entry]:
    assert isinstance(floor.desk, StoredDesk)
    return floor.desk


def newcomer(name: str, now: float, opens_in: float | None = None, **fields: Any) -> Entry:
    entry = new_entry(name, **fields)
    if opens_in is not None:
        entry.window = Window(now + opens_in)
    return entry


@given(
    strategy=st.sampled_from([fifo(), lifo(), priority(), fair_round_robin()]),
    policy=REFUSING,
    slots=st.sampled_from([1, 2, 3, None]),
    cap=st.sampled_from([None, 1, 2]),
    before=st.lists(NEWCOMER, max_size=5),
    started=st.booleans(),
    batch=st.lists(NEWCOMER, max_size=5),
)
def test_a_trial_predicts_which_jobs_are_refused(
    strategy: Strategy,
    policy: Policy,
    slots: int | None,
    cap: int | None,
    before: list[dict[str, Any]],
    started: bool,
    batch: list[dict[str, Any]],
) -> None:
    made = floor(strategy, policy, slots=slots, max_per_key=cap)
    for number, fields in enumerate(before):
        entry = newcomer(f"before {number}", made.now, **fields)
        if (
            not isinstance(made.offer(entry), Admitted | Joined)
            and made.desk.blocked_submitters.size
        ):
            made.desk.withdraw(entry, made.now)
        if started:
            made.start()
    trial = Trial(kept(made), made.now)
    entries = [newcomer(f"{number}", made.now, **fields) for number, fields in enumerate(batch)]
    told = []
    for entry in entries:
        told.append(trial.refuses(entry, rerun=False))
        if told[-1]:
            break
    taken = [isinstance(made.offer(entry), Admitted | Joined) for entry in entries[: len(told)]]
    assert told == [not one for one in taken]
    assert trial.waiting == made.desk.waiting


def test_a_trial_leaves_no_trace() -> None:
    made = floor(fifo(), bounded(2, FAIL))
    made.occupy()
    entry = newcomer("a", made.now, key="A", session="s", idempotency_key="k")
    assert not Trial(kept(made), made.now).refuses(entry, rerun=False)
    assert not Trial(kept(made), made.now).refuses(entry, rerun=False)
    assert (made.desk.waiting, list(made.desk)) == (0, [])
    assert kept(made).joined(entry.job, False, made.now) is None


def test_a_key_that_runs_again_needs_a_place_and_one_that_joins_does_not() -> None:
    made = floor(fifo(), fail_fast())
    made.submit("old", idempotency_key="k")
    made.fail(made.start()[0])
    made.occupy()
    entry = newcomer("new", made.now, idempotency_key="k")
    assert not Trial(kept(made), made.now).refuses(entry, rerun=False)
    assert Trial(kept(made), made.now).refuses(entry, rerun=True)


@pytest.mark.parametrize(
    ("policy", "without", "parking"),
    [
        (unbounded(), False, False),
        (ring_buffer(1), False, False),
        (bounded(1, OnFull.DROP_NEWEST), False, False),
        (bounded(1, OnFull.DROP_OLDEST), False, False),
        (bounded(1), True, False),
        (bounded(1, FAIL), True, True),
        (fail_fast(), True, True),
    ],
    ids=str,
)
def test_fewer_policies_refuse_a_submitter_that_can_block(
    policy: Policy, without: bool, parking: bool
) -> None:
    assert may_refuse(policy, may_block=False) is without
    assert may_refuse(policy, may_block=True) is parking


def succeed(made: Floor, strategy: Strategy, policy: Policy, cap: int | None = None) -> None:
    """Continue the pool of a floor under other rules."""
    old = kept(made)
    entries = sorted({*old, *old.blocked_submitters, *made.running}, key=lambda one: one.job.id)
    desk = StoredDesk(strategy, policy, old.slots, old._keys, cap)
    desk.succeed(old, entries, [entry.job.key for entry in made.running])
    made.desk = desk


@given(
    before=st.sampled_from([fifo(), lifo(), priority(), fair_round_robin()]),
    after=st.sampled_from([fifo(), lifo(), priority(), fair_round_robin()]),
    caps=st.tuples(st.sampled_from([None, 1, 2]), st.sampled_from([None, 1, 2])),
    jobs=st.lists(NEWCOMER, max_size=8),
    started=st.booleans(),
)
def test_no_job_is_lost_when_the_settings_change(
    before: Strategy,
    after: Strategy,
    caps: tuple[int | None, int | None],
    jobs: list[dict[str, Any]],
    started: bool,
) -> None:
    made = floor(before, unbounded(), slots=2, max_per_key=caps[0])
    for number, fields in enumerate(jobs):
        fields = {**fields, "idempotency_key": None}
        made.offer(newcomer(f"{number:02}", made.now, **fields))
        if started:
            made.start()
    succeed(made, after, bounded(3, OnFull.DROP_OLDEST), caps[1])
    desk = made.desk
    assert desk.waiting == len(list(desk)) == len(jobs) - len(made.running)
    made.now = 10.0
    for entry in [one for one in desk if one.job.status is Status.SCHEDULED]:
        kept(made).promote(entry, made.now)
    running = names(made.running)
    assert sorted([*running, *made.serve()]) == [f"{number:02}" for number in range(len(jobs))]
    assert (desk.waiting, desk.running) == (0, 0)


def test_with_the_same_strategy_no_job_changes_its_place() -> None:
    made = floor(fair_round_robin(), unbounded())
    for name in ("A1", "A2", "A3", "B1", "B2"):
        made.submit(name, key=name[0])
    made.complete(made.start()[0])
    succeed(made, fair_round_robin(), ring_buffer(3))
    assert made.serve() == ["B1", "A2", "B2", "A3"]


def test_a_lowered_key_cap_applies_as_running_jobs_end() -> None:
    made = floor(fifo(), unbounded(), slots=None, max_per_key=3)
    for name in ("a1", "a2", "a3", "a4", "a5"):
        made.submit(name, key="A")
    one, two, three = made.start()
    succeed(made, fifo(), unbounded(), cap=1)
    for entry in (one, two):
        made.complete(entry)
        assert made.start() == []
    made.complete(three)
    assert names(made.start()) == ["a4"]


def test_queueing_a_job_publishes_a_topic() -> None:
    made = floor(fifo(), unbounded())
    first = made.submit("a", session="s")
    made.submit("b", session="s")
    made.start()
    kept(made).topics.clear()
    made.complete(first)
    assert kept(made).topics == {"ready"}
