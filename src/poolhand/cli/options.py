"""Options that several commands share."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from poolhand import config
from poolhand.cli import screen
from poolhand.contract import Filter
from poolhand.operate.arguments import LAST
from poolhand.rules.job import Status
from poolhand.runtime import Runtime

Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="The store: sqlite:///file.db or postgresql://user@host/database. "
        "Else POOLHAND_STORE, or `store` in [tool.poolhand].",
    ),
]
App = Annotated[
    str | None,
    typer.Option("--app", metavar="MODULE:APP", help="Use the store of this app."),
]
Json = Annotated[bool, typer.Option("--json", help="Write JSON and nothing else.")]
By = Annotated[
    str,
    typer.Option(
        "--by",
        metavar="NAME",
        default_factory=config.person,
        show_default=False,
        help="Who does it, for the audit log; else your login.",
    ),
]
Limit = Annotated[
    int, typer.Option("--limit", min=1, max=10_000, metavar="N", help="How many at most.")
]
After = Annotated[
    int | None,
    typer.Option(
        "--after", min=0, max=LAST, metavar="CURSOR", help="Go on behind the page before."
    ),
]
Id = Annotated[
    str, typer.Argument(metavar="ID", help="The id of a job, or as much of it as no other has.")
]
Ids = Annotated[
    list[str],
    typer.Argument(metavar="ID", help="Ids of jobs, or as much of each as no other has."),
]
SomeIds = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", help="Ids of jobs, or as much of each as no other has."),
]
All = Annotated[bool, typer.Option("--all", help="All, or all that the filters mean.")]
Yes = Annotated[bool, typer.Option("--yes", help="Yes, all of them; nothing is asked.")]

Pool = Annotated[str | None, typer.Option("--pool", metavar="POOL", help="Only of this pool.")]
Statuses = Annotated[
    list[Status] | None,
    typer.Option(
        "--status",
        metavar="STATUS",
        help=f"Only in this state ({', '.join(Status)}); may be given several times.",
    ),
]
Tenant = Annotated[
    str | None, typer.Option("--tenant", metavar="TENANT", help="Only of this tenant.")
]
Session = Annotated[
    str | None, typer.Option("--session", metavar="SESSION", help="Only of this session.")
]
Key = Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only with this key.")]
Name = Annotated[
    str | None, typer.Option("--name", "--task", metavar="NAME", help="Only of this task.")
]
User = Annotated[str | None, typer.Option("--user", metavar="USER", help="Only for this user.")]
IdPrefix = Annotated[
    str | None, typer.Option("--id-prefix", metavar="TEXT", help="Only ids that begin so.")
]

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
        raise typer.BadParameter(f"{screen.safe(text)!r} is no time; give one {WHEN}") from None
    return named.replace(tzinfo=UTC) if named.tzinfo is None else named


Since = Annotated[
    datetime | None,
    typer.Option(
        "--since", parser=moment, metavar="WHEN", help=f"Only submitted since then, {WHEN}."
    ),
]
Until = Annotated[
    datetime | None,
    typer.Option("--until", parser=moment, metavar="WHEN", help="Only submitted before then."),
]


def chosen(
    pool: str | None,
    tenant: str | None,
    session: str | None,
    key: str | None,
    name: str | None,
    *,
    user: str | None,
    since: datetime | None,
    until: datetime | None,
    id_prefix: str | None,
) -> Filter:
    """Return the job filter of these options."""
    return Filter(
        pool=pool,
        name=name,
        key=key,
        session=session,
        tenant=tenant,
        user=user,
        since=since,
        until=until,
        id_prefix=id_prefix,
    )


ALL = Filter()
AN_ID = "19a8b0c1d2e3f4a5b6c7d8e00001"


def examples(*lines: str) -> str:
    """Return the epilog of a help text; the mark keeps its lines unwrapped."""
    return "\n".join(("\b", "Examples:", *(f"  $ {line}" for line in lines)))
