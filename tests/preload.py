"""Libraries that are put before those of a program by LD_PRELOAD, to break what it relies on."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.private_servers.programs import ServerMissing

WHAT, HOW = "a C compiler", "apt-get install gcc libc6-dev"


def preload(source: Path, folder: Path) -> Path:
    """Compile a library into a folder; raises ServerMissing where that cannot be done."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        raise ServerMissing(WHAT, ["gcc"], [], HOW)
    library = folder / source.with_suffix(".so").name
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library
