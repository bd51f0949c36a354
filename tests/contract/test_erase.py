"""Erasing: a finished job is deleted at once, with all that belongs to it."""

from __future__ import annotations

from poolhand.contract import LogLine, Put
from poolhand.rules.job import SESSION_ERASED, Status
from poolhand.rules.receipts import receipts_of_run
from poolhand.rules.streams import journal_of, session_of, streams_of, streams_of_session
from tests.contract.support import Hand, over

SESSION = session_of(None, "s")


async def erase(
    hand: Hand, *ids: str, streams: tuple[str, ...] = (), documents: tuple[str, ...] = ()
) -> list[str]:
    return await hand.store.erase(ids, streams, "anna", documents)


async def test_a_finished_job_is_erased_with_its_streams_and_its_key(hand: Hand) -> None:
    claim = await hand.start("a", idempotency_key="k", session="s")
    await hand.store.append([LogLine(stream, "kind", b"secret") for stream in streams_of("a")])
    await hand.finish(claim)
    await hand.finish(await hand.start("b", idempotency_key="other"))
    assert await erase(hand, "a", "a", "nobody", "x\ud800") == ["a"]
    assert await hand.store.get(["a", "b"]) == [None, await hand.get("b")]
    assert [await hand.store.read(stream) for stream in streams_of("a")] == [[], [], []]
    assert await hand.count() == {Status.COMPLETED: 1}
    # Its idempotency key belongs to no job now, and is free.
    await hand.take_in("c", idempotency_key="k")
    assert await hand.status("c") == "queued"
    assert await hand.audited("erase") == ["erase a"]
    assert await erase(hand, "a") == []


async def test_unfinished_jobs_are_not_erased(hand: Hand) -> None:
    claim = await hand.start("running")
    await hand.take_in("waiting", delay=5.0)
    stuck = await hand.start("stuck")
    await hand.change(hand.ended(stuck, stuck=True))
    assert await erase(hand, "running", "waiting", "stuck") == []
    await hand.finish(claim)
    await hand.store.replace(released=[stuck.token])
    assert await erase(hand, "running", "waiting", "stuck") == ["running", "stuck"]
    assert await hand.count() == {Status.SCHEDULED: 1}


async def test_other_named_streams_are_erased_too(hand: Hand) -> None:
    await hand.store.append([LogLine("s", "kind", b""), LogLine("t", "kind", b"")])
    assert await erase(hand, streams=("s", "nobody", "x\ud800")) == []
    assert await hand.store.read("s") == []
    assert len(await hand.store.read("t")) == 1


async def test_pruning_works_beside_erased_jobs(hand: Hand) -> None:
    for id in "abc":
        await hand.finish(await hand.start(id))
    assert await erase(hand, "b") == ["b"]
    assert await hand.store.prune(over(0.0)) == 2
    assert await hand.count() == {}


async def runs(hand: Hand) -> list[str]:
    """Begin three runs, each with a receipt and a journal; the second is continued twice."""
    for id in ("a", "b", "bb"):
        await hand.finish(await hand.start(id), status=Status.FAILED)
        await hand.store.put([Put(f"{receipts_of_run(id)}{key}", b"") for key in "xy"])
        await hand.store.append([LogLine(journal_of(id), "record", b"")])
    for id, before in (("c", "b"), ("d", "c")):
        claim = await hand.start(id, revives=before, continues="b")
        await hand.finish(claim, status=Status.FAILED)
    return ["a", "b", "bb"]


async def kept(hand: Hand) -> list[str]:
    """Return the runs that still have both."""
    found = {key.split("/")[2] for key in await hand.store.scan("receipt/run/")}
    assert found == {id for id in ("a", "b", "bb") if await hand.store.read(journal_of(id))}
    return sorted(found)


async def test_a_run_is_kept_while_one_of_its_jobs_is(hand: Hand) -> None:
    await runs(hand)
    assert await erase(hand, "a", "b") == ["a", "b"]
    assert await kept(hand) == ["b", "bb"]
    await erase(hand, "d")
    assert await kept(hand) == ["b", "bb"]
    await erase(hand, "c")
    assert await kept(hand) == ["bb"]


async def test_pruning_takes_runs_with_their_last_job(hand: Hand) -> None:
    await runs(hand)
    # Retried jobs are pruned first; one job of their run is left.
    assert await hand.store.prune(over(0.0), 2) == 2
    assert await kept(hand) == ["a", "b", "bb"]
    assert await hand.store.prune(over(0.0)) == 3
    assert await kept(hand) == []
    # No version number is used twice.
    written = await hand.store.put([Put(f"{receipts_of_run('a')}x", b"")])
    assert written is not None
    assert written > (1,)


async def test_named_documents_are_erased_too(hand: Hand) -> None:
    before = await hand.store.scan("")
    await hand.store.put([Put("a", b""), Put("b", b""), Put(SESSION, b"", ttl=5.0)])
    hand.clock.wait(6.0)
    await erase(hand, documents=("a", SESSION, "nothing"))
    after = [key for key in await hand.store.scan("") if key not in before]
    assert after == ["b", await name_of_erasure(hand, before)]


async def name_of_erasure(hand: Hand, before: list[str]) -> str:
    """Return the records of an erased session: that it existed, without its name."""
    (key,) = [key for key in await hand.store.scan("erased/") if key not in before]
    assert len(key) == len("erased/") + 64
    return key


async def test_a_write_based_on_an_erased_session_is_refused(hand: Hand) -> None:
    claim = await hand.start("turn", session="s")
    written = await hand.store.put([Put(SESSION, b"1")])
    assert written is not None
    (seen,) = written
    streams = streams_of_session(None, "s")
    again = Put(SESSION, b"2", seen=seen)
    assert await hand.store.put([again], claim.token) is not None
    await erase(hand, streams=streams, documents=(SESSION,))
    assert await hand.store.put([again], claim.token, [LogLine(SESSION, "revision", b"2")]) is None
    change = hand.ended(
        claim, documents=(again,), log=tuple(LogLine(one, "", b"2") for one in streams)
    )
    assert await hand.change(change) == (True,)
    assert (await hand.get("turn")).job.marks == (SESSION_ERASED,)
    assert await hand.store.get_document(SESSION) is None
    assert [await hand.store.read(stream) for stream in streams] == [[]] * len(streams)
    # A new session begins.
    new = await hand.store.put([Put(SESSION, b"new")])
    assert new is not None
    assert await hand.store.put([Put(SESSION, b"newer", seen=new[0])]) is not None
