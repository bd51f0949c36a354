"""The live view: the whole terminal, painted a few times a second.

Text from jobs goes into Text objects, which know no markup, after `printable` has spelled out what
could steer the terminal.
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

from poolhand import PoolSnapshot, Status, WorkerHealth
from stage.agents import rank
from stage.ledger import BAD, GOOD, Figures, News
from stage.plan import NOISY
from stage.printable import clock, printable, seconds
from stage.state import State

COLOURS = ("yellow", "cyan", "green", "magenta", "blue", "bright_cyan")
SPARKS = "▁▂▃▄▅▆▇█"
POOL_WIDTH = 26
POOL_ROWS = 6
SLOT_WIDTH = 24
BORDER = 2
MOST_NEWS = 10
NARROW = 60
HEADER_ROWS = 3
ROOMY_COUNTS = ("waiting", "running", "done", "failed")
NARROW_COUNTS = ("wait", "run", "done", "fail")


class Screen:
    """Paints the state of a run over the whole terminal."""

    interval = 0.125

    def __init__(self, state: State, console: Console) -> None:
        self._state = state
        self._console = console
        self._colours = {
            name: COLOURS[index % len(COLOURS)] for index, name in enumerate(state.ledger.tenants)
        }
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
        """Return what fits: the header, then the tenants, then the pool, then the news."""
        now = self._state.pool.snapshot()
        parts: list[RenderableType] = [self._header(width)]
        left = height - HEADER_ROWS
        tenants = min(len(self._state.ledger.tenants), left - 1 - BORDER)
        if tenants > 0:
            parts.append(self._tenants(width, tenants))
            left -= tenants + 1 + BORDER
        if left >= POOL_ROWS + BORDER:
            # As large as the pool may become: the rest stays in its place while it grows.
            rows, columns = self._slot_grid(width, left, self._state.flags.most_slots)
            parts.append(self._machine(now, width, rows, columns))
            left -= rows + BORDER
        if left > BORDER:
            parts.append(self._news(min(left - BORDER, MOST_NEWS)))
        return Group(*parts)

    def _header(self, width: int) -> Text:
        state = self._state
        claim = f"{len(state.ledger.tenants)} tenants, one fair pool"
        if width >= NARROW:
            claim += f": the burst of {NOISY} waits for itself"
        elapsed = clock(state.ledger.elapsed)
        gap = max(1, width - len("poolhand  ") - len(claim) - len(elapsed))
        head = Text(no_wrap=True, overflow="ellipsis")
        head.append("poolhand  ", "bold")
        head.append(claim + " " * gap)
        head.append(elapsed + "\n", "bold")
        progress = state.progress()
        head.append(progress, "bold yellow" if state.draining else "")
        if not state.draining:
            head.append("; Ctrl-C drains", "dim")
        head.append(f"\n{state.health()}")
        if state.ledger.incidents.resized:
            head.append(f"; {state.ledger.incidents.resized}", "dim")
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
        return Panel(table, box=box.ROUNDED, border_style="dim", padding=(0, 1))

    def _name(self, tenant: str) -> Text:
        return Text(printable(tenant), style=self._colours.get(tenant, ""))

    def _share(self, tenant: str, share: float, filled: int, width: int) -> Text:
        text = Text("█" * filled, style=self._colours[tenant])
        text.append("░" * (width - filled), "dim")
        text.append(f" {share:4.0%}", "default")
        return text

    def _slot_grid(self, width: int, room: int, slots: int) -> tuple[int, int]:
        """Return rows and columns: few columns while the news keep their room."""
        most = max(1, (width - POOL_WIDTH - BORDER - 2) // SLOT_WIDTH)
        news = min(MOST_NEWS, max(3, room // 3)) + BORDER
        for columns in range(1, most + 1):
            rows = max(POOL_ROWS, -(-slots // columns))
            if rows + BORDER + news <= room:
                return rows, columns
        return max(POOL_ROWS, room - BORDER - news), most

    def _machine(self, now: PoolSnapshot, width: int, rows: int, columns: int) -> RenderableType:
        if width < NARROW:
            return self._pool(now, rows)
        side_by_side = Table.grid(expand=True)
        side_by_side.add_column(width=POOL_WIDTH)
        side_by_side.add_column(ratio=1)
        side_by_side.add_row(self._pool(now, rows), self._slots(now, width, rows, columns))
        return side_by_side

    def _pool(self, now: PoolSnapshot, rows: int) -> Panel:
        ledger = self._state.ledger
        history = ledger.history(POOL_WIDTH - 4)
        top = max(history) or 1
        text = Text(no_wrap=True, overflow="crop")
        text.append(f"{now.active:>3}/{now.max_concurrent} active, ")
        text.append(f"{now.stuck} stuck\n", "bold red" if now.stuck else "dim")
        text.append(f"{now.queued:>3} queued\n{now.blocked:>3} blocked by session\n")
        text.append(f"{now.scheduled:>3} scheduled (retry)\n")
        text.append(f"{now.blocked_submitters:>3} submitters blocked\n")
        text.append("".join(SPARKS[count * 7 // top] for count in history), "cyan")
        title = Text(f"pool {ledger.rate():.0f}/s")
        return Panel(text, title=title, height=rows + BORDER, border_style="dim")

    def _slots(self, now: PoolSnapshot, width: int, rows: int, columns: int) -> Panel:
        names = list(now.workers)
        shown = names[: rows * columns]
        cell = (width - POOL_WIDTH - BORDER - 2 - 2 * (columns - 1)) // columns
        grid = Table.grid(padding=(0, 2, 0, 0))
        for _ in range(columns):
            grid.add_column(width=cell, no_wrap=True, overflow="ellipsis")
        for row in range(min(rows, len(shown))):
            line = shown[row::rows]
            grid.add_row(*(self._slot(name, now.workers[name]) for name in line))
        hidden = len(names) - len(shown)
        title = Text(f"slots ({hidden} more not shown)" if hidden else "slots")
        return Panel(grid, title=title, height=rows + BORDER, border_style="dim")

    def _slot(self, name: str, worker: WorkerHealth) -> Text:
        text = Text(f"{name} ", no_wrap=True, overflow="ellipsis")
        known = self._state.ledger.slots.get(name)
        if worker.job is None or known is None:
            text.append(f"○ {worker.state}", "dim")
            return text
        job, began = known
        mark = "◆" if job.name == rank.__name__ else "●"
        text.append("✖" if worker.stuck else mark, "bold red" if worker.stuck else "green")
        what = self._state.ledger.title(job) or "over, its code runs on"
        text.append(f" {printable(what)}", self._colours.get(job.key, ""))
        text.append(f" {seconds(time.monotonic() - began)}", "dim")
        return text

    def _news(self, rows: int) -> Panel:
        latest = self._state.ledger.latest(rows)
        lines = Text("\n", no_wrap=True, overflow="ellipsis").join(map(self._line, latest))
        lines.no_wrap, lines.overflow = True, "ellipsis"
        return Panel(lines, title=Text("news"), height=rows + BORDER, border_style="dim")

    def _line(self, news: News) -> Text:
        line = Text(f"{news.at:6.1f} ", style="dim")
        if news.tenant:
            line.append(f"{printable(news.tenant)} ", f"not dim {self._colours[news.tenant]}")
        tone = {BAD: "not dim red", GOOD: "not dim green"}.get(news.tone, "not dim")
        line.append(printable(news.text), tone)
        return line


def _counts(figures: Figures) -> list[Text]:
    failed = figures.ended[Status.FAILED]
    done = figures.ended.total()
    return [
        Text(str(figures.waiting)),
        Text(str(figures.running)),
        Text(str(done)),
        Text(str(failed), style="red" if failed else "dim"),
    ]


def _waits(figures: Figures) -> list[Text]:
    return [Text(seconds(figures.wait(share))) for share in (0.50, 0.95)]
