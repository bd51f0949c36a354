"""Commands for another terminal, on the same file."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

from stage.flags import Flags
from stage.kept import POOL


def export(flags: Flags) -> str:
    """Return the line that makes the file the store of all commands of a shell."""
    return f"export POOLHAND_STORE={shlex.quote(flags.store)}"


def while_it_runs() -> list[str]:
    """Return commands whose effect is visible in the live view."""
    words = ("jobs list --status running", f"pools pause {POOL}", f"pools resume {POOL}")
    return [f"{_program()} {some}" for some in words]


def afterwards(flags: Flags, dead: int) -> list[str]:
    """Return commands that show what happened to all jobs."""
    seen = "dead list" if dead else "audit --kind pool_rerun"
    store = shlex.quote(flags.store)
    words = ("jobs list --limit 10", seen, "doctor")
    return [f"{_program()} {some} --store {store}" for some in words]


def again(flags: Flags) -> str:
    """Return the command that continues with the jobs left in the file."""
    demo = Path(__file__).parents[1] / "demo.py"
    words = [_near(Path(sys.executable)), _near(demo), "--store", flags.store]
    return shlex.join(words)


def _program() -> str:
    """Return how to call `poolhand` here: by name if the shell finds the same program."""
    beside = Path(sys.executable).with_name("poolhand")
    found = shutil.which("poolhand")
    if found is not None and Path(found).samefile(beside if beside.exists() else found):
        return "poolhand"
    if beside.exists():
        return shlex.quote(_near(beside))
    return f"{shlex.quote(_near(Path(sys.executable)))} -m poolhand"


def _near(path: Path) -> str:
    """Return a path relative to this folder if that is shorter."""
    return min((str(path), os.path.relpath(path)), key=len)
