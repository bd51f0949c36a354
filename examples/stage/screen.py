"""The live view: the whole terminal, painted a few times a second.

Text from jobs is put into Text objects, which interpret no markup, after `printable` has escaped
control characters.
"""

from __future__ import annotations

import time
from itertools import islice
from types import TracebackType
from typing import Self

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from poolhand.views import Status
from stage import commands
from stage.ledger import Figures
from stage.news import BAD, GOOD, News
from stage.plan import NOISY
from stage.printable import clock, printable, seconds
from stage.process import Fate, Held, Process
from stage.state import State

COLOURS = ("yellow", "cyan", "green", "magenta", "blue", "bright_cyan")
SPARKS = "▁▂▃▄▅▆▇█"
POOL_WIDTH = 26
POOL_ROWS = 6
SLOT_WIDTH = 18
BORDER = 2
MOST_NEWS = 10
NARROW = 60
HEADER_ROWS = 3
COMMAND_SECONDS = 4
ROOMY_COUNTS = ("waiting", "running", "done", "failed")
NARROW_COUNTS = ("wait", "run", "done", "fail")
TONES = {BAD: "not dim red", GOOD: "not dim green"}
KILLED = (Fate.KILLED, Fate.TAKEN_BACK)


class Screen:
    """Paints the state of a run over the whole terminal."""

    interval = 0.125

    def __init__(self, state: State, console: Console) -> None:
        self._state = state
        self._console = console
        self._colours = {
            name: COLOURS[index % len(COLOURS)] for index, name in enumerate(state.ledger.tenants)
        }
        self._commands = commands.while_it_runs()
        self._live = Live(console=console, screen=True, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def paint(self) -> None:
        width, height = self._console.size
        self._live.update(self.compose(width, height), refresh=True)

    def compose(self, width: int, height: int) -> RenderableType:
        """Return what fits: the header, then the tenants, then the processes, then the news."""
        parts: list[RenderableType] = [self._header(width)]
        left = height - HEADER_ROWS
        tenants = min(len(self._state.ledger.tenants), left - 1 - BORDER)
        if tenants > 0:
            parts.append(self._tenants(width, tenants))
            left -= tenants + 1 + BORDER
        if left >= POOL_ROWS + BORDER:
            rows = self._machine_rows(left)
            parts.append(self._machine(width, rows))
            left -= rows + BORDER
        if left > BORDER:
            parts.append(self._news(width, min(left - BORDER, MOST_NEWS)))
        return Group(*parts)

    def _header(self, width: int) -> Text:
        state = self._state
        claim = f"{len(state.ledger.tenants)} tenants, one fair pool"
        if width >= NARROW:
            claim += ", one SQLite file, two processes"
        elapsed = clock(state.newsroom.elapsed)
        gap = max(1, width - len("poolhand  ") - len(claim) - len(elapsed))
        head = Text(no_wrap=True, overflow="ellipsis")
        head.append("poolhand  ", "bold")
        head.append(claim + " " * gap)
        head.append(elapsed + "\n", "bold")
        head.append(state.progress(), "bold yellow" if state.draining else "")
        if not state.draining:
            head.append("; Ctrl-C drains", "dim")
        head.append(f"\n{state.health()}", "bold green" if state.ledger.recovered else "")
        head.append(f"; {state.size()} in {printable(str(state.file))}", "dim")
        return head

    def _tenants(self, width: int, rows: int) -> Panel:
        ledger = self._state.ledger
        table = Table(box=None, expand=True, padding=(0, 1, 0, 0), header_style="dim")
        table.add_column("tenant", no_wrap=True)
        roomy = width >= NARROW
        for name in ROOMY_COUNTS if roomy else NARROW_COUNTS:
            table.add_column(name, justify="right", no_wrap=True)
        bar = max(6, min(40, width - 65))
        if roomy:
            table.add_column("turns of the last 5 s", no_wrap=True, min_width=bar + 5)
        for name in ("wait p50" if roomy else "p50", "p95"):
            table.add_column(name, justify="right", no_wrap=True, min_width=6)
        shares = ledger.shares()
        longest = max(shares.values()) or 1.0
        for name, figures in islice(ledger.tenants.items(), rows):
            filled = round(shares[name] / longest * bar)
            share = [self._share(name, shares[name], filled, bar)] if roomy else []
            table.add_row(self._name(name), *_counts(figures), *share, *_waits(figures))
        title = Text(f"the burst of {NOISY} waits for itself")
        return Panel(table, box=box.ROUNDED, title=title, border_style="dim", padding=(0, 1))

    def _name(self, tenant: str) -> Text:
        return Text(printable(tenant), style=self._colours.get(tenant, ""))

    def _share(self, tenant: str, share: float, filled: int, width: int) -> Text:
        text = Text("█" * filled, style=self._colours.get(tenant, ""))
        text.append("░" * (width - filled), "dim")
        text.append(f" {share:4.0%}", "default")
        return text

    def _machine_rows(self, room: int) -> int:
        """Return the number of rows for pool and processes; the news keep some rows."""
        news = min(MOST_NEWS, max(3, room // 3)) + BORDER
        wanted = max(POOL_ROWS, self._state.flags.own_slots)
        return max(POOL_ROWS, min(wanted, room - BORDER - news))

    def _machine(self, width: int, rows: int) -> RenderableType:
        if width < NARROW:
            return self._pool(rows)
        side_by_side = Table.grid(expand=True)
        side_by_side.add_column(width=POOL_WIDTH)
        side_by_side.add_column(ratio=1)
        side_by_side.add_column(ratio=1)
        each = (width - POOL_WIDTH) // 2
        panels = [self._process(process, each, rows) for process in self._state.processes]
        side_by_side.add_row(self._pool(rows), *panels)
        return side_by_side

    def _pool(self, rows: int) -> Panel:
        state, pool = self._state, self._state.pool
        text = Text(no_wrap=True, overflow="crop")
        if pool is not None:
            text.append(f"{pool.running:>3}/{pool.slots} running")
            text.append(", PAUSED\n" if pool.paused else "\n", "bold yellow")
            text.append(f"{pool.queued:>3} queued\n{pool.blocked:>3} blocked by session\n")
            text.append(f"{pool.scheduled:>3} scheduled (retry)\n")
            text.append(f"{pool.blocked_submitters:>3} submitters blocked\n")
        history = state.ledger.history(POOL_WIDTH - 4)
        top = max(history) or 1
        text.append("".join(SPARKS[count * 7 // top] for count in history), "cyan")
        title = Text(f"pool {state.ledger.rate():.0f}/s")
        return Panel(text, title=title, height=rows + BORDER, border_style="dim")

    def _process(self, process: Process, width: int, rows: int) -> Panel:
        inner = width - BORDER - 2
        columns = min(-(-process.slots // rows), max(1, inner // SLOT_WIDTH))
        shown = [f"worker-{index:03d}" for index in range(min(process.slots, rows * columns))]
        grid = Table.grid(padding=(0, 1, 0, 0))
        for _ in range(columns):
            grid.add_column(width=(inner - columns + 1) // columns, no_wrap=True)
        for row in range(min(rows, len(shown))):
            grid.add_row(*(self._slot(process, slot) for slot in shown[row::rows]))
        killed = process.fate in KILLED
        title = f"{process.name}, pid {process.pid}"
        fate = "" if process.fate is Fate.AT_WORK else process.fate.value
        style = "bold red" if killed else "dim"
        return Panel(
            grid,
            title=Text(title, "bold red" if killed else ""),
            subtitle=Text(fate, style) if fate else None,
            height=rows + BORDER,
            border_style="red" if killed else "dim",
        )

    def _slot(self, process: Process, slot: str) -> Text:
        text = Text(no_wrap=True, overflow="ellipsis")
        held = process.held.get(slot)
        if held is None:
            text.append("✖ gone" if process.fate in KILLED else "○ idle", "dim")
            return text
        text.append(*_mark(held, process.fate in KILLED))
        what = "over, its code runs on" if held.stuck else self._title(held)
        text.append(f" {seconds(time.monotonic() - held.since)}", "dim")
        text.append(f" {printable(what)}", self._colours.get(held.job.key, ""))
        return text

    def _title(self, held: Held) -> str:
        return self._state.ledger.title(held.job.session)

    def _news(self, width: int, rows: int) -> Panel:
        newsroom = self._state.newsroom
        lines = Text("\n").join(map(self._line, newsroom.latest(rows)))
        lines.no_wrap, lines.overflow = True, "ellipsis"
        turn = int(newsroom.elapsed / COMMAND_SECONDS) % len(self._commands)
        roomy = width >= NARROW
        return Panel(
            lines,
            title=Text(commands.export(self._state.flags) if roomy else "news"),
            subtitle=Text(f"try {self._commands[turn]}") if roomy else None,
            height=rows + BORDER,
            border_style="dim",
        )

    def _line(self, news: News) -> Text:
        line = Text(f"{news.at:6.1f} ", style="dim")
        if news.tenant:
            colour = self._colours.get(news.tenant, "")
            line.append(f"{printable(news.tenant)} ", f"not dim {colour}")
        line.append(printable(news.text), TONES.get(news.tone, "not dim"))
        return line


def _mark(held: Held, killed: bool) -> tuple[str, str]:
    if held.stuck or killed:
        return "✖", "bold red"
    return "◆" if held.job.name.endswith(".rank") else "●", "green"


def _counts(figures: Figures) -> list[Text]:
    failed = figures.ended[Status.FAILED]
    return [
        Text(str(figures.waiting)),
        Text(str(figures.running)),
        Text(str(figures.done)),
        Text(str(failed), style="red" if failed else "dim"),
    ]


def _waits(figures: Figures) -> list[Text]:
    return [Text(seconds(figures.wait(share))) for share in (0.50, 0.95)]
