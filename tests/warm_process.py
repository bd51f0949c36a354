"""A process that has imported what test programs import, and forks a child for each of them.

It reads requests from a socket, each with the files for the input and the outputs of a program, and
answers with one line: the id of the child that was started, or the exit code of a child that is
waited for. The child leaves the loop and runs its program as `__main__`, so that its interpreter
ends as any other does: with its exit handlers, and with the threads that are left.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import socket
import sys
import warnings
from multiprocessing import process
from types import ModuleType
from typing import Any

# What programs import: a child finds it in memory.
import asyncpg  # noqa: F401
from pydantic import TypeAdapter  # noqa: F401 - by typer, for each command

import poolhand.app
import poolhand.cli.commands.work
import poolhand.stores.postgres.store
import poolhand.stores.sqlite.store
import poolhand.testing  # noqa: F401

LONGEST = 2**20  # bytes of a request


def serve(link: socket.socket) -> dict[str, Any]:
    """Answer requests; return one in the child that is to run it, or {} at the end."""
    while True:
        data, files, _, _ = socket.recv_fds(link, LONGEST, 3)
        if not data:
            return {}
        request: dict[str, Any] = json.loads(data)
        if "wait" in request:
            _, status = os.waitpid(request["wait"], 0)
            link.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
            continue
        child = os.fork()
        if not child:
            link.close()
            become(request, files)
            return request
        for file in files:
            os.close(file)
        link.sendall(b"%d\n" % child)


def become(request: dict[str, Any], files: list[int]) -> None:
    """Take the place, the environment and the files of a program that was just started."""
    if request["session"]:
        os.setsid()
    os.chdir(request["folder"])
    process.ORIGINAL_DIR = request["folder"]  # type: ignore[attr-defined]
    os.environ.clear()
    os.environ.update(request["variables"])
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)


def play(words: list[str]) -> None:
    """Run what `python WORDS` runs, as the main module, which it stays until this process ends."""
    if words[0] == "-W":
        sys.warnoptions[:] = [words[1]]
        warnings.resetwarnings()
        warnings.simplefilter(words[1])  # type: ignore[arg-type]
        words = words[2:]
    added = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [path for path in added if path and path not in sys.path]
    if words[0] == "-m":
        sys.path[0] = os.getcwd()
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.path[0] = ""
        sys.argv = ["-c", *words[2:]]
        play_text(words[1], "<string>")
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
        sys.argv = words
        with open(words[0], encoding="utf-8") as file:
            play_text(file.read(), words[0], __file__=os.path.abspath(words[0]))


def play_text(text: str, name: str, **names: object) -> None:
    module = ModuleType("__main__")
    module.__dict__.update(names, __builtins__=__builtins__)
    sys.modules["__main__"] = module
    exec(compile(text, name, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - of a test


if __name__ == "__main__":
    # What is there now stays: no collection of a child need look through it.
    gc.collect()
    gc.freeze()
    wanted = serve(socket.socket(fileno=int(sys.argv[1])))
    if wanted:
        play(wanted["words"])
