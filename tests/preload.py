"""Libraries for LD_PRELOAD that inject faults into a program."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.private_servers.programs import ServerMissing

WHAT, HOW = "a C compiler", "apt-get install gcc libc6-dev"


def preload(source: Path, folder: Path) -> Path:
    """Compile a library into a folder; raises ServerMissing if that is not possible."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        raise ServerMissing(WHAT, ["gcc"], [], HOW)
    library = folder / source.with_suffix(".so").name
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library
