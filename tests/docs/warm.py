"""A process that has imported what the pages import, and forks a child for each script.

It reads one JSON request per line and answers with two lines: the id of the child, then its exit
code. The child leaves the loop and runs its script as `__main__`, so that its interpreter ends as
any other does: with its exit handlers, and with the threads that are left.
"""

from __future__ import annotations

import json
import os
import sys
from types import ModuleType
from typing import Any

# What pages import: a child finds it in memory.
import asyncpg  # noqa: F401

import poolhand
import poolhand.app
import poolhand.testing  # noqa: F401


def serve() -> dict[str, Any]:
    """Answer requests; return one in the child that is to run it, or {} at the end."""
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            request: dict[str, Any] = json.loads(line)
            return request
        _answer(pid)
        _, status = os.waitpid(pid, 0)
        _answer(os.waitstatus_to_exitcode(status))
    return {}


def _answer(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def become(request: dict[str, Any]) -> None:
    """Take the place, the environment and the outputs of a script that was just started."""
    os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["variables"])
    for number, name in enumerate((os.devnull, request["out"], request["err"])):
        flags = os.O_RDONLY if not number else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        opened = os.open(name, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    sys.argv = [request["path"]]
    sys.path[0] = os.path.dirname(request["path"])


def play(path: str) -> None:
    """Run a file as the main module, which it stays until this process ends."""
    main = ModuleType("__main__")
    main.__dict__.update(__file__=path, __builtins__=__builtins__)
    sys.modules["__main__"] = main
    with open(path, encoding="utf-8") as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, main.__dict__)  # noqa: S102 - a page of ours


if __name__ == "__main__":
    asked = serve()
    if asked:
        become(asked)
        play(asked["path"])
