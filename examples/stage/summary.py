"""The summary: the share of each tenant, and proof that nothing was lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from poolhand.views import Status, WorkerReport
from stage.crew import Fall
from stage.ledger import Figures, Ledger, Origin
from stage.news import jobs
from stage.plan import NOISY
from stage.printable import printable, seconds
from stage.traffic import Traffic

TABLE_WIDTH = 80
LATEST_FALLS = 3
COLUMNS = ("sessions", "turns", "ok", "retried", "failed", "rerun", "cancelled")
ENDS = (Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.REJECTED, Status.EXPIRED)


@dataclass(frozen=True, slots=True)
class Books:
    """The accounts of callers, audit log and store; `left` and `dead` are counted in the store."""

    traffic: Traffic
    ledger: Ledger
    falls: Sequence[Fall]
    report: WorkerReport
    left: int
    dead: int


def conserved(books: Books) -> bool:
    """Return whether callers, audit log and store agree on the outcome of every job.

    An interrupted submit may have been accepted or not; all others must be in the log, and so must
    the outcomes that their callers received.
    """
    traffic, ledger = books.traffic, books.ledger
    unclaimed = ledger.submitted - traffic.accepted
    unheard = ledger.ended - traffic.heard
    return (
        not traffic.lost
        and traffic.accepted == traffic.heard.total() + traffic.left
        and not traffic.heard - ledger.ended
        and 0 <= unclaimed <= traffic.unknown
        and unheard.total() <= unclaimed
        and ledger.submitted == ledger.ended.total() + ledger.alive(Origin.TURN)
        and books.left == len(ledger.live)
    )


def show(books: Books) -> None:
    """Print the table, the totals and the check."""
    # In a narrow terminal the lines wrap; a table that fits would have to leave figures out.
    console = Console(width=max(Console().width, TABLE_WIDTH))
    console.print(_table(books.ledger))
    for line in (*_balance(books), *_deaths(books), *_remarks(books)):
        # Not wrapped here, so that a search in the output finds whole lines.
        console.print(Text(line), soft_wrap=True)


def _table(ledger: Ledger) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    table.add_column("tenant", no_wrap=True)
    for name in (*COLUMNS, "wait p50", "p95"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, figures in ledger.tenants.items():
        table.add_row(Text(printable(name)), *_row(figures))
    table.add_section()
    table.add_row(Text("all"), *_row(_sum(ledger)))
    return table


def _row(figures: Figures) -> list[Text]:
    ended = figures.ended
    counts = (
        figures.sessions,
        figures.turns,
        ended[Status.COMPLETED],
        figures.retried,
        ended[Status.FAILED],
        figures.rerun,
        ended[Status.CANCELLED],
    )
    waits = (figures.wait(0.50), figures.wait(0.95))
    return [*(Text(str(count)) for count in counts), *(Text(seconds(wait)) for wait in waits)]


def _sum(ledger: Ledger) -> Figures:
    total = Figures()
    for figures in ledger.tenants.values():
        total.sessions += figures.sessions
        total.turns += figures.turns
        total.retried += figures.retried
        total.rerun += figures.rerun
        total.doubled += figures.doubled
        total.ended += figures.ended
        total.waits.extend(figures.waits)
    return total


def _balance(books: Books) -> Iterator[str]:
    traffic, ledger = books.traffic, books.ledger
    counts = {status.value: ledger.ended[status] for status in ENDS}
    counts["waiting"] = ledger.alive(Origin.TURN)
    parts = " + ".join(f"{name} {count}" for name, count in counts.items() if count) or "0"
    yield f"accepted {ledger.submitted} = {parts}, lost {traffic.lost}"
    if not conserved(books):
        yield (
            f"NOT CONSERVED: callers were given {traffic.accepted} tickets, {traffic.unknown} "
            f"submits were broken off, they heard {dict(traffic.heard)}; the audit log has "
            f"{ledger.submitted} and {dict(ledger.ended)}, the store {books.left} unfinished"
        )
    if ledger.found:
        left = ledger.alive(Origin.FOUND)
        yield f"of an earlier run: found {ledger.found}, ended {ledger.found - left}"


def _deaths(books: Books) -> Iterator[str]:
    ledger = books.ledger
    yield f"recovered {ledger.recovered}, of which ended {ledger.recovered_over}"
    if len(books.falls) > LATEST_FALLS:
        yield f"  processes killed: {len(books.falls)}, the latest of them:"
    for fall in books.falls[-LATEST_FALLS:]:
        after = fall.taken_back_after
        how = "nothing to take back" if after is None else f"taken back after {seconds(after)}"
        yield f"  pid {fall.pid} was killed while it ran {jobs(fall.jobs)}, {how}"
    yield (
        f"dead letters: failed {ledger.ended[Status.FAILED]}, run again "
        f"{ledger.reruns.total() + ledger.alive(Origin.RERUN)}, dead now {books.dead}"
    )


def _remarks(books: Books) -> Iterator[str]:
    ledger, newsroom, report = books.ledger, books.ledger.newsroom, books.report
    yield f"sent twice, run once: {_sum(ledger).doubled} turns"
    if newsroom.blocked:
        yield f"event loop blocked: {newsroom.blocked}, the last time by {newsroom.blocker}"
    noisy = ledger.tenants[NOISY].wait(0.95)
    quiet = [
        wait
        for name, figures in ledger.tenants.items()
        if name != NOISY and (wait := figures.wait(0.95)) is not None
    ]
    if quiet and noisy is not None:
        yield (
            f"{NOISY} sent everything at once and waited up to {seconds(noisy)} (p95), "
            f"the others up to {seconds(max(quiet))}"
        )
    yield (
        f"drained in {seconds(report.seconds)}: {report.handed_back} given back, "
        f"{report.stuck} stuck"
    )
