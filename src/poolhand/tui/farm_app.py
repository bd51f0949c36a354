"""The live view as a Textual app: polls a store every second and runs the actions of keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.driver import Driver
from textual.events import Key
from textual.widgets import DataTable, Input

from poolhand.errors import PoolhandError
from poolhand.farm.records import FarmRecord, Snapshot
from poolhand.operate.actions import Operator
from poolhand.rules.plain import safe
from poolhand.runtime import Runtime
from poolhand.tui.board import Board, ViewTabs
from poolhand.tui.job_screen import JobScreen, snapshot_lines
from poolhand.tui.model import JOBS, POOLS, WORKERS, JobFilter, KeyActions, ViewModel
from poolhand.tui.widgets import HELP, Grid, Question, StatusLine, TextPage

OF_THE_BOARD = {"view", "tab", "search", "state", "only_pool"}


class FarmApp(App[None]):
    """Shows farms, jobs and pools of a store.

    With a `farm_id` it shows only that farm, and ends with it. `on_quit(fast)` stops that farm;
    without it, quitting only ends the view.
    """

    TITLE = "poolhand"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "leave"),
        Binding("ctrl+c,ctrl+q", "leave", priority=True),
        Binding("t", "view"),
        Binding("1", "tab('workers')"),
        Binding("2", "tab('jobs')"),
        Binding("3", "tab('pools')"),
        Binding("question_mark", "help"),
        Binding("slash", "search"),
        Binding("f", "state"),
        Binding("o", "only_pool"),
        Binding("r", "retry"),
        Binding("c", "cancel"),
        Binding("p", "pause"),
        Binding("s", "snapshot"),
        Binding("x", "drain"),
        Binding("plus", "bounds(1, 0)"),
        Binding("minus", "bounds(-1, 0)"),
        Binding("right_square_bracket", "bounds(0, 1)"),
        Binding("left_square_bracket", "bounds(0, -1)"),
        Binding("escape", "forget_choice"),
    ]

    def __init__(
        self,
        operator: Operator,
        *,
        by: str,
        farm_id: str | None = None,
        on_quit: Callable[[bool], None] | None = None,
        every: float = 1.0,
        runtime: Runtime | None = None,
        has_terminal: Callable[[], bool] = lambda: True,
        driver_class: type[Driver] | None = None,
    ) -> None:
        super().__init__(driver_class)
        self.now = (runtime or Runtime()).wall
        self.operator = operator
        self.on_quit = on_quit
        self.every = every
        self.has_terminal = has_terminal
        self.quits = 0
        self.model = ViewModel(operator, farm_id, runtime or Runtime())
        self.key_actions = KeyActions(operator, by, (runtime or Runtime()).monotonic)
        self.board = Board()
        self.due = asyncio.Event()
        self.task_factory = asyncio.get_running_loop().get_task_factory()

    def compose(self) -> ComposeResult:
        yield self.board

    def on_mount(self) -> None:
        # Textual sets an eager task factory; other code on this loop relies on the usual order.
        asyncio.get_running_loop().set_task_factory(self.task_factory)
        # Use the terminal's own colours, light or dark.
        self.theme = "ansi-dark"
        self.board.go_to(WORKERS)
        self.run_worker(self._watch())
        self.set_interval(self.every, self._tick)

    def _tick(self) -> None:
        """Update the times; exit if the terminal is gone."""
        if self.has_terminal():
            self.board.show_head(self.model)
        else:
            self.exit()

    async def _watch(self) -> None:
        """Poll and refresh periodically; at once after an action of the user."""
        while True:
            self.due.clear()
            covered = len(self.screen_stack) > 1
            if await self.model.look(None if covered else self.board.view) and not covered:
                self.board.show(self.model, self.now())
            if self.model.ended(asked_to=self.quits > 0):
                self.exit()
            self.board.show_head(self.model)
            try:
                async with asyncio.timeout(self.every):
                    await self.due.wait()
            except TimeoutError:
                pass

    def say(self, text: str) -> None:
        """Show a message in the status line of every screen."""
        for screen in self.screen_stack:
            for line in screen.query(StatusLine):
                line.say(text)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable the keys of the main screen while a job screen covers it."""
        return not (action in OF_THE_BOARD and isinstance(self.screen, JobScreen))

    def action_leave(self) -> None:
        """Stop the farm of this terminal; without one, only end the view."""
        self.quits += 1
        if self.on_quit is None or self.quits > 2:
            self.exit()
        elif self.quits == 1:
            self.say("the farm stops when its running jobs have ended; q again stops it at once")
            self.on_quit(False)
        else:
            self.say("the farm stops at once; q again only closes this view")
            self.on_quit(True)

    def action_view(self) -> None:
        self._go_to(self.board.next_view)

    def action_tab(self, view: str) -> None:
        self._go_to(view)

    def on_view_tabs_chosen(self, event: ViewTabs.Chosen) -> None:
        self._go_to(event.view)

    def action_help(self) -> None:
        self.push_screen(TextPage("Keys", HELP))

    def action_search(self) -> None:
        self.board.open_search()
        self.due.set()

    def action_forget_choice(self) -> None:
        """Reset the filter: show all jobs."""
        self.board.close_search()
        self._choose(JobFilter())

    def action_state(self) -> None:
        self._go_to(JOBS)
        self._choose(self.model.choice.next_state())

    def action_only_pool(self) -> None:
        self._go_to(JOBS)
        self._do(self._next_pool())

    async def _next_pool(self) -> str:
        pools = [pool.name for pool in await self.operator.pools()]
        self._choose(self.model.choice.next_pool(pools))
        return f"jobs: {self.model.choice.words}"

    def action_retry(self) -> None:
        self._do_to("job", self._job(), self.key_actions.retry)

    def action_cancel(self) -> None:
        self._do_to("job", self._job(), self.key_actions.cancel)

    def action_pause(self) -> None:
        self._do_to("pool", self._pool(), self.key_actions.switch_pool)

    def action_bounds(self, minimum: int, maximum: int) -> None:
        """Change the bounds of the selected farm."""
        if farm := self._farm():
            self._do(self.key_actions.move_bounds(farm, minimum, maximum))

    def action_snapshot(self) -> None:
        """Show a snapshot of the selected worker or farm."""
        if self.board.view == WORKERS and (chosen := self.board.worker_table.chosen):
            self._do(self._show_snapshot(chosen))
        elif farm := self._farm():
            self._do(self._show_snapshot(farm.id))

    async def _show_snapshot(self, id: str) -> str:
        self.say(f"{id} is asked for a snapshot")
        found = await self.key_actions.snapshot(id)
        if not isinstance(found, Snapshot):
            return found
        self.push_screen(TextPage("Snapshot", snapshot_lines(found)))
        return f"snapshot of {id}"

    def action_drain(self) -> None:
        """Drain the selected farm, after a confirmation."""
        farm = self._farm()
        if farm is None:
            return
        id = farm.id

        def answered(yes: bool | None) -> None:
            if yes:
                self._do(self.key_actions.drain(id))

        question = f"Drain farm {safe(id)}: stop it after its running jobs?"
        self.push_screen(Question(question), answered)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open the selected job, pool or worker."""
        grid = event.data_table
        chosen = grid.chosen if isinstance(grid, Grid) else None
        if chosen is None:
            return
        if grid in (self.board.jobs, self.board.recent):
            self._open(chosen)
        elif grid in self.board.troubles.values():
            self._open(chosen.partition("\n")[2])
        elif grid is self.board.pools:
            self._choose(JobFilter(pool=chosen))
            self._go_to(JOBS)
        else:
            self.action_snapshot()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Load more jobs when the cursor reaches the last one."""
        grid = self.board.jobs
        if event.data_table is grid and grid.at_end and self.model.want_more():
            self.due.set()

    def on_key(self, event: Key) -> None:
        """Insert keys into the search field that were typed before it had the focus."""
        search = self.board.search
        if self.focused is search and event.is_printable and event.character:
            search.insert_text_at_cursor(event.character)

    def on_input_changed(self, event: Input.Changed) -> None:
        self.model.search(event.value)
        self.due.set()

    def on_input_submitted(self) -> None:
        self.board.go_to(JOBS)

    def _farm(self) -> FarmRecord | None:
        """Return the selected farm; show a message if there is none."""
        farm = self.model.farm_of(self.board.worker_table.chosen)
        if farm is None:
            self.say("select a farm first, in the view Farm")
        return farm

    def _job(self) -> str | None:
        if isinstance(self.screen, JobScreen):
            return self.screen.job_id
        return self.board.job

    def _pool(self) -> str | None:
        if isinstance(self.screen, JobScreen):
            return None if self.screen.job is None else self.screen.job.pool
        if self.board.view == POOLS:
            return self.board.pools.chosen
        return self.model.pool_of(self._job())

    def _open(self, job: str) -> None:
        if job:
            self.push_screen(JobScreen(self.operator, job, self.model.where, self.now, self.every))

    def _go_to(self, view: str) -> None:
        self.board.go_to(view)
        self.due.set()

    def _choose(self, choice: JobFilter) -> None:
        self.model.choose(choice)
        self.due.set()

    def _do_to(
        self, what: str, id: str | None, act: Callable[[str], Coroutine[Any, Any, str]]
    ) -> None:
        if id is None:
            self.say(f"select a {what} first")
        else:
            self._do(act(id))

    def _do(self, act: Coroutine[Any, Any, str]) -> None:
        self.run_worker(self._done(act))

    async def _done(self, act: Coroutine[Any, Any, str]) -> None:
        """Run an action and show its result; an error of ours does not end the view."""
        try:
            self.say(await act)
        except PoolhandError as error:
            self.say(str(error))
        self.due.set()
