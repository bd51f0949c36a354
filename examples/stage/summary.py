"""The summary: who had what, and proof that nothing was lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from poolhand import DrainReport, Status
from stage.ledger import Figures, Incidents, Ledger
from stage.plan import NOISY
from stage.printable import printable, seconds
from stage.traffic import Traffic

TABLE_WIDTH = 80
COLUMNS = ("sessions", "turns", "ok", "retried", "failed", "rejected", "cancelled")
ENDS = (Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.REJECTED, Status.EXPIRED)


def conserved(report: DrainReport, traffic: Traffic, ledger: Ledger) -> bool:
    """Tell whether pool, callers and events agree on what became of every job."""
    told: Counter[Status] = Counter()
    for figures in ledger.tenants.values():
        told += figures.ended
    ends = _ends(report)
    return (
        report.submitted == traffic.accepted == sum(ends.values())
        and +traffic.heard == +ends
        and told == +ends
    )


def show(report: DrainReport, traffic: Traffic, ledger: Ledger) -> None:
    """Print the table, the totals and the check."""
    # In a narrow terminal the lines wrap; a table that fits would have to leave figures out.
    console = Console(width=max(Console().width, TABLE_WIDTH))
    console.print(_table(ledger))
    ends = _ends(report)
    parts = " + ".join(f"{status.value} {ends[status]}" for status in ENDS)
    lost = traffic.accepted - traffic.heard.total()
    _say(console, f"accepted {report.submitted} = {parts}, lost {lost}")
    if not conserved(report, traffic, ledger):
        _say(
            console,
            f"NOT CONSERVED: callers were given {traffic.accepted} tickets and heard "
            f"{dict(traffic.heard)}; the pool says {report}",
        )
    _say(
        console,
        f"drained in {seconds(report.seconds)}: {report.rejected} turned away at the deadline, "
        f"{report.stuck} stuck",
    )
    for remark in _remarks(ledger):
        _say(console, remark)


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
        ended[Status.REJECTED],
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
        total.doubled += figures.doubled
        total.refused += figures.refused
        total.ended += figures.ended
        total.waits.extend(figures.waits)
    return total


def _remarks(ledger: Ledger) -> Iterator[str]:
    total = _sum(ledger)
    quiet = [
        wait
        for name, figures in ledger.tenants.items()
        if name != NOISY and (wait := figures.wait(0.95)) is not None
    ]
    yield f"sent twice, run once: {total.doubled} turns"
    yield from _incidents(ledger.incidents)
    if total.refused:
        yield f"refused while draining: {total.refused} submits, of which nothing is left"
    noisy = ledger.tenants[NOISY].wait(0.95)
    if quiet and noisy is not None:
        yield (
            f"{NOISY} sent everything at once and waited up to {seconds(noisy)} (p95), "
            f"the others up to {seconds(max(quiet))}"
        )


def _incidents(incidents: Incidents) -> Iterator[str]:
    if incidents.grown:
        yield (
            f"changes of size: {incidents.grown} up, to {incidents.most_slots} slots, "
            f"{incidents.shrunk} down"
        )
    if incidents.blocked:
        yield f"event loop blocked: {incidents.blocked}, the last time by {incidents.blocker}"
    if incidents.killed:
        yield f"processes killed: {incidents.killed}, their jobs completed: {incidents.recovered}"


def _ends(report: DrainReport) -> Counter[Status]:
    return Counter(
        {
            Status.COMPLETED: report.completed,
            Status.FAILED: report.failed,
            Status.CANCELLED: report.cancelled,
            Status.REJECTED: report.rejected,
            Status.EXPIRED: report.expired,
        }
    )


def _say(console: Console, text: str) -> None:
    # Wrapped by the terminal, if at all: whoever searches the output finds whole lines.
    console.print(Text(text), soft_wrap=True)
