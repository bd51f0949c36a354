"""The environment of a measurement."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from cases import Scale

PEERS = ("uvloop", "aiometer", "anyio", "aiojobs")


def described(scale: Scale) -> str:
    """One line per fact."""
    facts = {
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "loops": f"asyncio of the standard library, uvloop {installed('uvloop')}",
        "peers": ", ".join(f"{name} {installed(name)}" for name in PEERS[1:]),
        "cores": f"{len(os.sched_getaffinity(0))} ({platform.machine()}, {platform.system()})",
        "load at the end": f"{os.getloadavg()[0]:.1f}",
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "commit": commit(),
        "repeats": f"{scale.repeats} (imports {scale.import_repeats}); the median is shown",
    }
    return "\n".join(f"- {name}: {fact}" for name, fact in facts.items())


def installed(name: str) -> str:
    """The version of a peer."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def commit() -> str:
    """The measured commit, marked if files differ from it."""
    here = Path(__file__).parent
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--match="]
    try:
        done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()
