"""Every error and every answer has the exit code that scripts rely on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from poolhand import errors
from poolhand.cli.session import CODES, code_of_answers, code_of_error
from poolhand.errors import PoolhandError
from poolhand.operate.views import ControlResult


def family(kind: type[PoolhandError]) -> Iterator[type[PoolhandError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from family(child)


def made(kind: type[PoolhandError]) -> PoolhandError:
    return kind.__new__(kind)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.UsageError, 2),
        (errors.PoolFull, 4),
        (errors.NoFreeSlot, 4),
        (errors.Unavailable, 5),
        (errors.Corrupt, 5),
        (errors.ReadOnly, 5),
        (errors.SchemaTooNew, 5),
        (errors.Conflict, 4),
        (errors.Unsupported, 2),
        (errors.TooLarge, 1),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else str(value),
)
def test_an_error_ends_with_its_code(kind: type[PoolhandError], code: int) -> None:
    assert code_of_error(made(kind)) == code


def test_every_error_family_is_in_the_exit_code_table() -> None:
    ours = {kind.code for kind in family(PoolhandError) if kind.__module__ == "poolhand.errors"}
    families = {code if code == "PH-000" else code.rpartition("-")[0] for code in ours}
    assert families <= set(CODES)
    assert set(CODES) <= families | ours


DONE = ControlResult("j-1", True, "cancelled", "")
MISSING = ControlResult("j-2", False, "not_found", "")
FULL = ControlResult("j-3", False, "full", "")


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ([], 0),
        ([DONE, DONE], 0),
        ([DONE, FULL], 1),
        ([DONE, MISSING], 1),
        ([MISSING, MISSING], 3),
        ([FULL], 4),
        ([FULL, MISSING], 4),
    ],
    ids=["none", "all", "not all", "one missing", "all missing", "refused", "neither"],
)
def test_answers_end_with_their_code(answers: list[ControlResult], code: int) -> None:
    assert code_of_answers(answers) == code
