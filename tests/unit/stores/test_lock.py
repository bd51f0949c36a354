"""The lock between processes; two open descriptions of one file stand for two processes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from poolhand.stores.sqlite.lock import LOCK_SECONDS, FileLock, LockPatience
from poolhand.testing.seeded import SeededRuntime, run_seeded


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def patient(clock: Clock | None = None) -> LockPatience:
    return LockPatience(clock or Clock(), LOCK_SECONDS)


def two_locks(folder: Path) -> tuple[FileLock, FileLock]:
    path = str(folder / "store.db-lock")
    return FileLock(path), FileLock(path)


def test_a_lock_has_one_holder(tmp_path: Path) -> None:
    one, other = two_locks(tmp_path)
    assert one.take(patient())
    assert not other.take(patient())
    one.release()
    assert other.take(patient())
    assert not one.take(patient())
    other.close()
    assert one.take(patient())
    one.close()


def test_a_lock_that_is_held_is_waited_for(tmp_path: Path) -> None:
    async def main(runtime: SeededRuntime) -> float:
        one, other = two_locks(tmp_path)
        assert one.take(patient())

        async def let_go() -> None:
            await asyncio.sleep(3)
            one.release()

        letting = asyncio.create_task(let_go())
        began = runtime.monotonic()
        assert await other.wait(LockPatience(runtime.monotonic, 10))
        waited = runtime.monotonic() - began
        await letting
        one.close()
        other.close()
        return waited

    # Virtual time: it came within one pause.
    assert 3 <= run_seeded(main, seed=1) < 3.03


def test_waiting_ends_at_its_limit(tmp_path: Path) -> None:
    async def main(runtime: SeededRuntime) -> float:
        one, other = two_locks(tmp_path)
        assert one.take(patient())
        began = runtime.monotonic()
        assert not await other.wait(LockPatience(runtime.monotonic, 10))
        waited = runtime.monotonic() - began
        one.close()
        other.close()
        return waited

    assert run_seeded(main, seed=1) == pytest.approx(10, abs=0.01)


def test_a_long_waiter_gets_the_lock_before_one_that_just_released_it(tmp_path: Path) -> None:
    hot, waiting = two_locks(tmp_path)
    clock = Clock()
    patience = patient(clock)
    assert hot.take(patient())
    assert not waiting.take(patience)
    hot.release()
    assert hot.take(patient()), "who has not waited long has no right to be first"
    clock.time += 0.03
    assert not waiting.take(patience)
    hot.release()
    assert not hot.take(patient()), "now it has"
    assert waiting.take(patience)
    waiting.release()
    assert hot.take(patient())
    hot.close()
    waiting.close()


def test_a_first_waiter_that_is_stopped_is_overtaken(tmp_path: Path) -> None:
    stopped, other = two_locks(tmp_path)
    clock, later = Clock(), Clock()
    assert other.take(patient())
    patience = patient(clock)
    clock.time += 0.03
    assert not stopped.take(patience)
    other.release()
    polite = patient(later)
    assert not other.take(polite)
    later.time += 1
    assert other.take(polite)
    other.close()
    stopped.close()


@pytest.mark.parametrize("end", ["limit", "cancel"])
def test_a_waiter_that_gave_up_lets_others_pass(tmp_path: Path, end: str) -> None:
    async def main(runtime: SeededRuntime) -> None:
        one, other = two_locks(tmp_path)
        assert one.take(patient())
        waiting = asyncio.create_task(
            other.wait(LockPatience(runtime.monotonic, 1 if end == "limit" else 100))
        )
        await asyncio.sleep(2)
        if end == "cancel":
            waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        one.release()
        assert one.take(patient())
        one.close()
        other.close()

    run_seeded(main, seed=1)


def test_a_lock_whose_file_was_removed_is_taken_on_the_new_file(tmp_path: Path) -> None:
    one, other = two_locks(tmp_path)
    assert one.take(patient())
    one.release()
    os.unlink(one.path)
    assert other.take(patient())
    assert not one.take(patient()), "the old file is not the lock any more"
    assert not one.take(patient())
    other.release()
    assert one.take(patient())
    one.close()
    other.close()


def test_a_lock_that_cannot_be_created_raises_the_os_error(tmp_path: Path) -> None:
    lock = FileLock(str(tmp_path / "missing" / "store.db-lock"))
    with pytest.raises(FileNotFoundError):
        lock.take(patient())


def test_a_lock_whose_second_file_cannot_be_created_is_not_left_half_open(tmp_path: Path) -> None:
    lock, other = two_locks(tmp_path)
    turn = tmp_path / "store.db-lock-turn"
    turn.symlink_to(tmp_path / "missing" / "file")
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            lock.take(patient())
    turn.unlink()
    assert lock.take(patient())
    lock.close()
    assert other.take(patient())
    other.close()


def test_a_lock_whose_file_cannot_be_checked_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: str) -> os.stat_result:
        raise OSError(5, "Input/output error")

    lock, other = two_locks(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", broken)
        with pytest.raises(OSError, match="Input/output"):
            lock.take(patient())
    assert other.take(patient())
    other.close()
    assert lock.take(patient())
    lock.close()


def test_pauses_grow_from_a_millisecond_and_stay_short() -> None:
    clock = Clock()
    patience = patient(clock)
    pauses = []
    while (pause := patience.pause()) is not None:
        pauses.append(pause)
        clock.time += pause
    assert pauses[0] == 0.001
    assert max(pauses) == 0.02
    assert sum(pauses) == pytest.approx(LOCK_SECONDS)
