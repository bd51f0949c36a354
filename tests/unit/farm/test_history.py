"""The history of ended jobs: bounded, page by page, none twice."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolhand.farm.records import LONGEST_TEXT, MOST_BYTES, FinishedJob, History, finished, running
from poolhand.rules.job import Fault, Job, Status

AT = datetime(2030, 1, 2, tzinfo=UTC)


def ended(number: int, text: str = "") -> FinishedJob:
    return FinishedJob(f"j-{number}", "fetch", "web", Status.COMPLETED, 1, AT, 0.5, text)


def kept(most: int, count: int, text: str = "") -> History:
    history = History(most)
    for number in range(1, count + 1):
        history.add(ended(number, text))
    return history


def ids(jobs: tuple[FinishedJob, ...]) -> list[int]:
    return [int(job.id.removeprefix("j-")) for job in jobs]


def all_pages(history: History, limit: int) -> list[list[int]]:
    pages, after = [], 0
    while True:
        page, following = history.page(after, limit)
        pages.append(ids(page))
        if following is None:
            return pages
        after = following


def test_the_newest_jobs_are_listed_first_and_the_oldest_are_dropped() -> None:
    assert all_pages(kept(5, 8), limit=2) == [[8, 7], [6, 5], [4]]


@given(st.integers(0, 30), st.integers(0, 60), st.integers(1, 40))
def test_pages_give_all_that_is_kept_once(most: int, count: int, limit: int) -> None:
    pages = all_pages(kept(most, count), limit)
    oldest = max(0, count - most)
    assert [id for page in pages for id in page] == list(range(count, oldest, -1))
    assert all(len(page) == limit for page in pages[:-1])


def test_jobs_finished_between_pages_do_not_shift_them() -> None:
    history = kept(10, 6)
    first, after = history.page(0, 3)
    history.add(ended(7))
    assert after is not None
    second, _ = history.page(after, 3)
    assert (ids(first), ids(second)) == ([6, 5, 4], [3, 2, 1])


def test_a_page_after_dropped_jobs_is_empty_and_the_last() -> None:
    assert kept(3, 10).page(4, 5) == ((), None)


def test_a_history_that_keeps_nothing_still_counts() -> None:
    history = kept(0, 3)
    assert (history.count, history.page(0, 10), history.newest(2, 10)) == (3, ((), None), ((), 2))


def test_a_page_has_no_more_bytes_than_it_may_but_always_a_job() -> None:
    text = "x" * (MOST_BYTES // 4)
    assert all_pages(kept(10, 7, text), limit=100) == [[7, 6, 5], [4, 3, 2], [1]]
    assert all_pages(kept(10, 2, "x" * (2 * MOST_BYTES)), limit=100) == [[2], [1]]


def test_the_newest_jobs_since_a_number_are_returned_oldest_first() -> None:
    history = kept(10, 6)
    found = [history.newest(since, most) for since, most in ((3, 10), (0, 2), (6, 10))]
    assert [(ids(jobs), last) for jobs, last in found] == [([4, 5, 6], 6), ([5, 6], 6), ([], 6)]


def test_a_snapshot_has_a_page_of_finished_jobs_and_the_running_ones() -> None:
    found = kept(10, 3).snapshot("box-1", "box-1.2", running([JOB]), 0, 2)
    assert (found.farm, found.worker, ids(found.finished), found.after) == (
        "box-1", "box-1.2", [3, 2], 2,
    )  # fmt: skip
    assert [job.id for job in found.running] == ["j-9"]


JOB = Job(
    id="j-9",
    pool="web",
    pool_id="p",
    status=Status.RUNNING,
    submitted_at=AT,
    name="fetch",
    started_at=AT,
    marks=("soft_timeout", "hard_timeout"),
)


def test_a_running_job_is_reported_with_its_latest_mark() -> None:
    (told,) = running([JOB])
    assert (told.id, told.name, told.pool, told.since, told.mark) == (
        "j-9", "fetch", "web", AT, "hard_timeout",
    )  # fmt: skip


def test_a_job_that_has_not_started_or_not_ended_is_not_reported() -> None:
    assert running([msgspec.structs.replace(JOB, started_at=None)]) == ()
    assert finished(JOB, "box-1.2") is None


@pytest.mark.parametrize("size", [10, LONGEST_TEXT, 100 * LONGEST_TEXT])
def test_long_errors_are_reported_by_their_ends(size: int) -> None:
    fault = Fault("ValueError", "m" * size + "!", "t" * size + "?")
    job = msgspec.structs.replace(JOB, status=Status.FAILED, finished_at=AT, ran=2.0, error=fault)
    told = finished(job, "box-1.2")
    assert told is not None
    assert told.error is not None
    assert (told.worker, told.ran, told.error.type) == ("box-1.2", 2.0, "ValueError")
    assert told.error.message.endswith("!")
    assert told.error.traceback.endswith("?")
    assert len(told.error.message) <= LONGEST_TEXT
    assert len(msgspec.json.encode(told)) < 3 * LONGEST_TEXT + 500
