"""The journal: positions, their recorded results, and branches."""

from __future__ import annotations

from poolhand.agents.tools.keys import Path
from poolhand.agents.tools.step import Journal, JournalBranch, JournalStep, write


def steps(*paths: Path) -> list[bytes]:
    return [write(JournalStep(path, f"at {path}", b"", b"")) for path in paths]


def test_positions_are_counted_within_each_step() -> None:
    journal = Journal()
    assert [journal.next(()), journal.next(()), journal.next((2,)), journal.next(())] == [
        (1,),
        (2,),
        (2, 1),
        (3,),
    ]


def test_the_last_record_at_a_position_wins() -> None:
    journal = Journal([*steps((1,)), write(JournalStep((1,), "other", b"", b""))])
    found = journal.find((1,))
    assert found is not None
    assert found.name == "other"
    assert journal.find((2,)) is None


def test_a_branch_drops_the_steps_after_it_and_within_it() -> None:
    paths: list[Path] = [(1,), (1, 1), (2,), (2, 1), (2, 2), (2, 2, 1), (2, 3), (3,), (3, 1)]
    journal = Journal(steps(*paths))
    journal.branch((2, 2))
    assert [path for path in paths if journal.find(path)] == [
        (1,),
        (1, 1),
        (2,),
        (2, 1),
        (3,),
        (3, 1),
    ]
    journal.branch((2,))
    assert [path for path in paths if journal.find(path)] == [(1,), (1, 1)]


def test_a_branch_that_was_recorded_holds_for_later_attempts() -> None:
    journal = Journal([*steps((1,), (2,)), write(JournalBranch((1,))), *steps((1,))])
    assert journal.find((1,)) is not None
    assert journal.find((2,)) is None
