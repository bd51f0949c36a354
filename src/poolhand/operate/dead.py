"""Export of dead letters with their calls, and deletion of those that are not to be retried."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from poolhand.contract import Filter, Stored
from poolhand.durable.calls.call_record import read_brief
from poolhand.durable.calls.serializer import Serializer
from poolhand.errors import PoolhandError
from poolhand.operate.operable import Operable
from poolhand.operate.retry import AT_ONCE, NOT_FOUND, Progress, Tell
from poolhand.operate.views import ControlResult, JobView, Summary, job_view
from poolhand.rules.values.plain import PlainView


class DeadLetter(PlainView, frozen=True):
    """A dead letter for an archive: the job and its call.

    `call` is the task with its positional and keyword arguments, or None if they cannot be decoded
    without the code and the keys of the app; `payload` is the stored bytes, in base64.
    """

    job: JobView
    call: Any
    payload: str


class ExportPage(PlainView, frozen=True):
    """A page of dead letters, newest first; `after` is the next cursor, None at the end."""

    letters: tuple[DeadLetter, ...]
    after: int | None


async def export(store: Operable, which: Filter, after: int | None, limit: int) -> ExportPage:
    """Return a page of dead letters with their calls."""
    page = await store.find(replace(which, dead=True), after, limit)
    letters = []
    for one in page.jobs:
        brief = await store.brief(one.job.id)
        if brief is not None:
            letters.append(_letter(one, brief))
    return ExportPage(tuple(letters), page.after)


async def drop(store: Operable, ids: Sequence[str], by: str) -> list[ControlResult]:
    """Delete these dead letters; return one answer per job; the audit log records each."""
    found = dict(zip(ids, await store.get(ids), strict=True))
    dead = [id for id, one in found.items() if one is not None and one.dead]
    gone = set(await store.erase(dead, (), by))
    return [_answer(id, found[id], id in gone) for id in ids]


async def drop_all(store: Operable, which: Filter, by: str, tell: Tell | None) -> Summary:
    """Delete all dead letters that match the filter."""
    which = replace(which, dead=True)
    total = sum((await store.count(which)).values())
    done = 0
    kept: list[ControlResult] = []
    after: int | None = None
    while True:
        page = await store.find(which, after, AT_ONCE)
        answers = await drop(store, [one.job.id for one in page.jobs], by)
        done += sum(answer.done for answer in answers)
        kept += [answer for answer in answers if not answer.done]
        if tell is not None and page.jobs:
            tell(Progress(done, len(kept), max(total, done + len(kept))))
        if page.after is None:
            return Summary(done, len(kept), tuple(kept))
        after = page.after


def _letter(stored: Stored, brief: bytes) -> DeadLetter:
    payload, call = b"", None
    try:
        payload = read_brief(brief, stored.job.id).payload
        call = Serializer().read(payload, Any, "the call")
    except PoolhandError:
        # Signed, pickled or damaged: only the bytes can be exported.
        pass
    return DeadLetter(job_view(stored, None), call, b64encode(payload).decode())


def _answer(id: str, stored: Stored | None, is_gone: bool) -> ControlResult:
    if is_gone:
        return ControlResult(id, True, "dropped", "it is forgotten")
    if stored is None:
        return ControlResult(id, False, "not_found", NOT_FOUND)
    if not stored.dead:
        text = f"it is no dead letter: {stored.job.status.value}"
        return ControlResult(id, False, "not_dead", text)
    return ControlResult(id, False, "kept", "its code still runs; drop it when that has ended")
