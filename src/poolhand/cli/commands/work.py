"""`poolhand work`: run the jobs of an app in worker processes until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from poolhand import config
from poolhand.app_name import is_module
from poolhand.app_options import IN_CODE, store_conflict, store_line
from poolhand.cli import options, screen
from poolhand.cli.session import StoreUrls, file_of, loaded, reported_errors
from poolhand.errors import UsageError
from poolhand.observe.logs import log_events
from poolhand.rules.scaling.worker_count import FarmSettings, Verbosity
from poolhand.rules.validation import shown
from poolhand.setting_table import APP, LOGLEVELS, PROFILES

if TYPE_CHECKING:
    from poolhand.app import App
    from poolhand.farm.records import FarmRecord

ONE_SIGNAL = 0.1
LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"


commands = options.Commands()

Name = Annotated[
    str | None,
    typer.Argument(
        metavar="MODULE:APP", help="The app; default: POOLHAND_APP, or `app` in [tool.poolhand]."
    ),
]
Tui = Annotated[bool, typer.Option("--tui", help="Show the farm live.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log every job, too.")]
Concurrency = Annotated[
    int | None, options.text("--concurrency", "N", "Jobs that one worker runs at once.", "-c")
]
Surge = Annotated[
    int | None,
    options.text("--surge", "N", "Processes beyond the maximum while workers are replaced."),
]
Pools = Annotated[
    list[str] | None, options.text("--pool", "POOL", "Only jobs of this pool; repeatable.")
]
Grace = Annotated[
    float | None, options.text("--grace", "SECONDS", "Seconds that running jobs have at a stop.")
]
External = Annotated[
    bool | None,
    typer.Option(
        "--external/--scale", help="Keep the minimum, and only report how many workers are wanted."
    ),
]
Loglevel = Annotated[str | None, options.text("--loglevel", "LEVEL", f"{', '.join(LOGLEVELS)}.")]
Profile = Annotated[
    str | None, options.text("--profile", "NAME", f"{', '.join(PROFILES)}: one job a worker.")
]


@commands.add(
    "work",
    "poolhand work myproject.agents:app",
    "poolhand work myproject.agents:app --min 2 --max 20 --concurrency 50",
    "poolhand work myproject.agents:app --profile llm --tui",
)
def work(
    app: Name = None,
    tui: Tui = False,
    verbose: Verbose = False,
    concurrency: Concurrency = None,
    least: options.Least = None,
    most: options.Most = None,
    surge: Surge = None,
    pools: Pools = None,
    grace: Grace = None,
    external: External = None,
    loglevel: Loglevel = None,
    profile: Profile = None,
) -> None:
    """Run the jobs of an app in worker processes.

    The farm monitors its workers, scales them with the load, and replaces those that die. SIGTERM
    or Ctrl-C: claim no more jobs, and give running ones the grace to end; a second one: stop at
    once, and return running jobs to the queue. SIGHUP: replace the workers, one after the other.
    """
    with reported_errors() as urls:
        _check_app(app)
        found = config.load(
            profile=profile,
            app=app,
            loglevel=loglevel,
            worker_shutdown_grace_s=grace,
            external=external,
            min_workers=least,
            max_workers=most,
            surge=surge,
            prefetch_per_worker=concurrency,
        )
        for unknown in found.unknown:
            screen.warn(config.unknown_variable(unknown))
        _work(urls, found, pools, Verbosity(found.loglevel, verbose, quiet=tui))


def _check_app(app: str | None) -> None:
    """Raise if the argument names no app; the settings would call it a flag."""
    try:
        if app is not None:
            APP.parse(app)
    except ValueError:
        raise UsageError(
            f"MODULE:APP={shown(app)} is not allowed; it must be {APP.allowed}{_meant(app)}"
        ) from None


def _meant(app: str | None) -> str:
    """Return how to name the app of a file or of a module."""
    file, _, rest = (app or "").partition(":")
    module = file.removeprefix("./").removesuffix(".py").replace("/", ".")
    attribute = rest.partition(":")[0]
    outer, _, last = module.rpartition(".")
    if not attribute and is_module(outer) and not is_module(module):
        # Another separator than the colon: `agents.app` or `agents/app`.
        module, attribute = outer, last
    if not all(part.isidentifier() for part in (*module.split("."), attribute or "app")):
        return ""
    return f"; did you mean {module}:{attribute or 'app'}?"


def _work(
    urls: StoreUrls, found: config.Config, pools: list[str] | None, verbosity: Verbosity
) -> None:
    name = found.app.text
    if name is None:
        raise UsageError("no app is named; give MODULE:APP, such as myproject.agents:app")
    app = loaded(name)
    urls.urls.append(app.url)
    with _logging(app, verbosity):
        conflict = store_conflict_of(app, name, found.store)
        if conflict is not None:
            screen.warn(conflict)
        asyncio.run(_run(app, name, found.farm, pools, verbosity))


@contextmanager
def _logging(app: App, verbosity: Verbosity) -> Iterator[None]:
    """Log the events of an app to stderr, unless the live view uses the terminal."""
    if verbosity.quiet:
        logging.basicConfig(handlers=[logging.NullHandler()])
        yield
        return
    logging.basicConfig(level=verbosity.loglevel.upper(), format=LOG_FORMAT)
    end = log_events(events=app.events)
    logging.getLogger("poolhand").info("%s", store_line(app.url, app.store_origin))
    try:
        yield
    finally:
        end()


def store_conflict_of(app: App, name: str, setting: config.Value) -> str | None:
    """Return a warning if a setting names another store than the code of an app, else None."""
    if app.store_origin != IN_CODE or setting.is_default or setting.text is None:
        return None
    if file_of(app.url) is not None and file_of(app.url) == file_of(setting.text):
        return None
    return store_conflict(name, app.url, setting.text, setting.origin)


async def _run(
    app: App, name: str, settings: FarmSettings, pools: list[str] | None, verbosity: Verbosity
) -> None:
    """Run a farm with this process's signal handlers."""
    farm = app.farm(name, settings, pools=pools or None, speech=verbosity)
    loop = asyncio.get_running_loop()
    heard_at = 0.0

    def stop() -> None:
        nonlocal heard_at
        # A signal sent to both the process and its group counts once.
        if loop.time() - heard_at >= ONE_SIGNAL:
            # Set only for a signal that counts, so a rapid series is not ignored for ever.
            heard_at = loop.time()
            farm.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    # With the live view SIGHUP means that the terminal is gone.
    loop.add_signal_handler(signal.SIGHUP, stop if verbosity.quiet else farm.renew)
    if not verbosity.quiet:
        await farm.run()
        return
    from poolhand.tui import LiveView

    view = LiveView(app.operator(), farm_id=farm.id, by=config.person(), on_quit=farm.stop)
    async with asyncio.TaskGroup() as group:
        group.create_task(farm.run()).add_done_callback(lambda _: view.end())
        await view.run()
        if not farm.is_stopping:
            farm.stop()
    await _sum_up(app, farm.record(), pools)


async def _sum_up(app: App, farm: FarmRecord, pools: list[str] | None) -> None:
    """Write the summary of a farm after its view has closed, which leaves no other output."""
    from poolhand.cli.commands.top import after_farm

    text = await after_farm(app.operator(), farm, pools or app.core.declared.served())
    await app.close()
    screen.to_stderr(screen.safe(text))
