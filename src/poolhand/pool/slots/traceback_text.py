"""The traceback of an error as text: with causes, contexts and sub-exceptions, bounded in size."""

from __future__ import annotations

from traceback import FrameSummary, StackSummary, TracebackException, extract_tb, format_list

MOST_FRAMES = 20  # per exception: those closest to where it was raised
LONGEST_LINE = 2_000
LONGEST_TEXT = 16_000
MOST_REASONS = 3  # sub-exceptions that the message of a group names


def traceback_text(error: BaseException, skip: int, caller: str) -> str:
    """Return what `traceback.format_exception` gives, without the pool's outermost frames.

    These are the first `skip` frames of the error, and the leading frames from the file `caller`.
    Empty for an error that was never raised and has no cause, context or sub-exceptions. Raises
    whatever the methods of the error raise.
    """
    try:
        found = TracebackException(type(error), error, error.__traceback__, compact=True)
        del found.stack[:skip]
        _cut_stacks(found, caller)
        if not (found.stack or found.__cause__ or found.__context__ or found.exceptions):
            return ""
        text = "".join(found.format())
    except BaseException:
        # Formatting raised; the place where the error was raised is known nevertheless.
        frames = extract_tb(error.__traceback__)[skip:]
        text = "".join(format_list(_cut(frames, caller)))
    return bounded(text.rstrip("\n") + "\n") if text else ""


def group_text(group: BaseExceptionGroup[BaseException]) -> str:
    """Return the message of a group with its first sub-exceptions, which are the reason."""
    reasons: list[str] = []
    left: list[BaseException] = [group]
    while left and len(reasons) < MOST_REASONS:
        one = left.pop(0)
        if isinstance(one, BaseExceptionGroup):
            left[:0] = one.exceptions
            continue
        try:
            text = str(one)[:LONGEST_LINE]
        except Exception:
            text = ""
        reasons.append(f"{type(one).__qualname__}: {text}" if text else type(one).__qualname__)
    return f"{group}: {'; '.join(reasons)}{'; …' if left else ''}"


def bounded(text: str) -> str:
    """Shorten a long text by omitting its middle; both ends stay."""
    lines = [_short(line) for line in text.split("\n")]
    if sum(len(line) + 1 for line in lines) <= LONGEST_TEXT:
        return "\n".join(lines)
    first = _fitting(lines, LONGEST_TEXT // 2)
    last = _fitting(lines[::-1], LONGEST_TEXT // 2)
    left_out = len(lines) - first - last
    return "\n".join([*lines[:first], f"  … {left_out:,} lines left out …", *lines[-last:]])


def _short(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}…"


def _fitting(lines: list[str], room: int) -> int:
    for count, line in enumerate(lines):
        room -= len(line) + 1
        if room < 0:
            return count
    return len(lines)


def _cut_stacks(found: TracebackException, caller: str) -> None:
    """Cut the stacks of an exception and of its causes, contexts and sub-exceptions."""
    left = [found]
    while left:
        one = left.pop()
        one.stack = StackSummary(_cut(one.stack, caller))
        left += [other for other in (one.__cause__, one.__context__) if other is not None]
        left += one.exceptions or ()


def _cut(stack: list[FrameSummary], caller: str) -> list[FrameSummary]:
    start = 0
    while start < len(stack) and stack[start].filename == caller:
        start += 1
    return stack[max(start, len(stack) - MOST_FRAMES) :]
