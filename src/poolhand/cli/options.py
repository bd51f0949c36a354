"""Options that several commands share, each with one meaning."""

from __future__ import annotations

from typing import Annotated

import typer

from poolhand import config
from poolhand.contract import Filter
from poolhand.operate.actions import LAST
from poolhand.rules.job import Status

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
Ids = Annotated[list[str], typer.Argument(metavar="ID", help="Ids of jobs.")]

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
Name = Annotated[str | None, typer.Option("--name", metavar="NAME", help="Only of this task.")]


def chosen(
    pool: str | None,
    tenant: str | None,
    session: str | None,
    key: str | None,
    name: str | None,
    statuses: list[Status] | None = None,
) -> Filter:
    """Return which jobs these options mean."""
    return Filter(
        pool=pool,
        statuses=tuple(statuses or ()),
        name=name,
        key=key,
        session=session,
        tenant=tenant,
    )


AN_ID = "19a8b0c1d2e3f4a5b6c7d8e00001"


def examples(*lines: str) -> str:
    """Return what stands below a help text; the mark keeps its lines as they are."""
    return "\n".join(("\b", "Examples:", *(f"  $ {line}" for line in lines)))
