"""Options that several commands share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_type_hints

import typer
from msgspec import Struct
from typer.core import TyperCommand

from poolhand import config
from poolhand.cli import screen
from poolhand.contract import Filter
from poolhand.operate.arguments import LAST
from poolhand.rules.job import Status
from poolhand.runtime import Runtime


def text(flag: str, metavar: str, help: str, *others: str) -> Any:
    """Return an option that takes a text, a number or a choice."""
    return typer.Option(flag, *others, metavar=metavar, help=help)


def number(flag: str, metavar: str, help: str, least: int = 0, most: int = LAST) -> Any:
    """Return an option that takes a whole number within bounds."""
    return typer.Option(flag, min=least, max=most, metavar=metavar, help=help)


Store = Annotated[
    str | None,
    text(
        "--store",
        "URL",
        "The store: sqlite:///file.db or postgresql://user@host/database. "
        "Default: POOLHAND_STORE, or `store` in [tool.poolhand].",
    ),
]
App = Annotated[str | None, text("--app", "MODULE:APP", "Use the store of this app.")]
Json = Annotated[bool, typer.Option("--json", help="Write JSON and nothing else.")]
By = Annotated[
    str,
    typer.Option(
        "--by",
        metavar="NAME",
        default_factory=config.person,
        show_default=False,
        help="The actor in the audit log; default: your login name.",
    ),
]
Limit = Annotated[int, number("--limit", "N", "List at most this many.", 1, 10_000)]
After = Annotated[int | None, number("--after", "CURSOR", "Continue after the previous page.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="The id of a job, or a unique prefix of it.")]
_IDS = typer.Argument(metavar="ID", help="Ids of jobs, or unique prefixes of them.")
Ids = Annotated[list[str], _IDS]
SomeIds = Annotated[list[str] | None, _IDS]
All = Annotated[bool, typer.Option("--all", help="All jobs that match the filters.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
Least = Annotated[int | None, text("--min", "N", "The minimum number of workers.")]
Most = Annotated[int | None, text("--max", "N", "The maximum number of workers.")]

Pool = Annotated[str | None, text("--pool", "POOL", "Only jobs of this pool.")]
Statuses = Annotated[
    list[Status] | None,
    text("--status", "STATUS", f"Only with this status ({', '.join(Status)}); repeatable."),
]
Tenant = Annotated[str | None, text("--tenant", "TENANT", "Only this tenant.")]
Session = Annotated[str | None, text("--session", "SESSION", "Only jobs of this session.")]
Key = Annotated[str | None, text("--key", "KEY", "Only jobs with this key.")]
Name = Annotated[str | None, text("--name", "NAME", "Only jobs of this task.", "--task")]
User = Annotated[str | None, text("--user", "USER", "Only jobs of this user.")]
IdPrefix = Annotated[str | None, text("--id-prefix", "TEXT", "Only ids with this prefix.")]

SPANS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
SPAN = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
WHEN = "such as 90s, 15m, 2h, 3d, 1w (before now) or 2030-01-31T12:00"


def moment(text: str) -> datetime:
    """Parse a time: a duration before now, or an ISO time, in UTC if it has no zone."""
    try:
        if SPAN.sub("", text) == "" and text:
            long = sum(float(number) * SPANS[unit] for number, unit in SPAN.findall(text))
            return Runtime().wall() - timedelta(seconds=long)
        named = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{screen.safe(text)!r} is not a time; give one {WHEN}") from None
    return named.replace(tzinfo=UTC) if named.tzinfo is None else named


Since = Annotated[
    datetime | None,
    typer.Option(
        "--since", parser=moment, metavar="WHEN", help=f"Only jobs submitted since, {WHEN}."
    ),
]
Until = Annotated[
    datetime | None,
    typer.Option("--until", parser=moment, metavar="WHEN", help="Only jobs submitted before."),
]


class Source(Struct, frozen=True):
    """The store of a command, as its options name it."""

    store: str | None
    app: str | None


class Target(Source, frozen=True):
    """The store of a command, and whether it writes JSON."""

    json: bool = False

    def wrote(self, value: Any) -> bool:
        """Write a value if JSON is wanted; return whether it is."""
        if self.json:
            screen.as_json(value)
        return self.json


_SOURCE = {"store": Store, "app": App}
GROUPS: Mapping[type, Mapping[str, Any]] = {
    Source: _SOURCE,
    Target: {"json": Json, **_SOURCE},
    Filter: {
        "pool": Pool,
        "tenant": Tenant,
        "user": User,
        "session": Session,
        "key": Key,
        "name": Name,
        "since": Since,
        "until": Until,
        "id_prefix": IdPrefix,
    },
}
"""Parameter types that stand for several options."""

ALL = Filter()
AN_ID = "19a8b0c1d2e3f4a5b6c7d8e00001"
Command = Callable[..., None]
KEYWORD = Parameter.KEYWORD_ONLY


# Options of other task queues, and of `app.worker()`, by what they are called here.
OTHER_OPTIONS = {"--slots": "--concurrency", "--queue": "--pool", "--queues": "--pool"}


class HintedCommand(TyperCommand):
    """A command that names the option which is meant by one of another program."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = {name for parameter in self.params for name in parameter.opts}
        for word in args:
            name = word.partition("=")[0]
            if name not in own and (meant := OTHER_OPTIONS.get(name)) in own:
                ctx.fail(f"No such option: {name} Did you mean {meant}?")
        return super().parse_args(ctx, args)


class Commands(typer.Typer):
    """Commands that share groups of options, and whose help ends with examples."""

    def add(self, name: str, *examples: str) -> Callable[[Command], Command]:
        """Register a command under a name."""
        # The mark keeps the lines unwrapped.
        epilog = "\n".join(("\b", "Examples:", *(f"  $ {line}" for line in examples)))

        def register(command: Command) -> Command:
            self.command(name, cls=HintedCommand, epilog=epilog)(_expanded(command))
            return command

        return register


def _default(annotation: Any) -> bool | None:
    return False if annotation is Json else None


def _expanded(command: Command) -> Command:
    """Replace each parameter whose type is in GROUPS by the options of that group."""
    types = get_type_hints(command, include_extras=True)
    parameters: list[Parameter] = []
    grouped: dict[str, type] = {}
    for name, parameter in signature(command).parameters.items():
        if types[name] in GROUPS:
            grouped[name] = types[name]
            parameters += [
                Parameter(option, KEYWORD, default=_default(annotation), annotation=annotation)
                for option, annotation in GROUPS[types[name]].items()
            ]
        else:
            parameters.append(parameter.replace(kind=KEYWORD, annotation=types[name]))

    def run(**given: Any) -> None:
        for name, kind in grouped.items():
            given[name] = kind(**{option: given.pop(option) for option in GROUPS[kind]})
        command(**given)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {}
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return run
