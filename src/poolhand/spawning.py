"""Spawning: child processes that watch their parent before they run any code of its script.

A spawned process first imports the main module of its parent. A script without
`if __name__ == "__main__":` may never finish that import, and would then outlive its parent. So the
import is left to the function that the process runs, which first makes sure that the process ends
with its parent.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping
from multiprocessing import current_process, reduction, resource_tracker, spawn, util
from multiprocessing.context import SpawnProcess, set_spawning_popen
from types import MappingProxyType
from typing import Any

MAIN = ("init_main_from_name", "init_main_from_path")


# The folder in which this process resolved each relative path first.
_folders: dict[str, str] = {}


class ChildProcess(SpawnProcess):
    """A spawned process; `main` is the location of its parent's script.

    `folders` are those in which its parent resolved relative paths.
    """

    main: dict[str, Any] | None = None
    folders: Mapping[str, str] = MappingProxyType({})

    if sys.platform != "win32":

        @staticmethod
        def _Popen(process: Any) -> Any:
            from multiprocessing.popen_spawn_posix import Popen

            class Launched(Popen):
                """Starts a process like Popen, but leaves its main module unimported."""

                def _launch(self, process_obj: Any) -> None:
                    _launch(self, process_obj)

            return Launched(process)


def _launch(popen: Any, process: Any) -> None:
    """Do what `Popen._launch` does, but remove the main module from the preparation data."""
    tracker = resource_tracker.getfd()
    data = spawn.get_preparation_data(process.name)
    process.main = {key: data.pop(key) for key in MAIN if key in data}
    process.folders = {**_folders, **_inherited_folders()}
    popen._fds.append(tracker)
    packed = io.BytesIO()
    set_spawning_popen(popen)
    try:
        reduction.dump(data, packed)
        reduction.dump(process, packed)
    finally:
        set_spawning_popen(None)
    ours = os.pipe()
    try:
        theirs = os.pipe()
    except OSError:
        _close(*ours)
        raise
    try:
        command = spawn.get_command_line(tracker_fd=tracker, pipe_handle=theirs[0])
        popen._fds += [theirs[0], ours[1]]
        executable = os.fsencode(spawn.get_executable())
        popen.pid = util.spawnv_passfds(executable, command, popen._fds)
        popen.sentinel = ours[0]
        with open(theirs[1], "wb", closefd=False) as pipe:
            pipe.write(packed.getbuffer())
    finally:
        # Our pipe ends stay open while the Popen exists: their EOF shows that we have ended.
        popen.finalizer = util.Finalize(popen, _close, [ours[0], theirs[1]])
        _close(theirs[0], ours[1])


def absolute_path(path: str) -> str:
    """Return the absolute form of a path, in a child the one that the path has in its parent.

    The parent may have changed its folder before it started the child, which imports its script.
    """
    if os.path.isabs(path):
        return path
    folder = _inherited_folders().get(path)
    if folder is None:
        folder = os.getcwd()
        _folders.setdefault(path, folder)
    return os.path.join(folder, path)


def _inherited_folders() -> Mapping[str, str]:
    found: Mapping[str, str] = getattr(current_process(), "folders", {})
    return found


def _close(*files: int) -> None:
    for file in files:
        os.close(file)


def import_main() -> None:
    """Import the parent's script; meanwhile `is_coming_up` is true for this process."""
    process: Any = current_process()
    if getattr(process, "main", None):
        process._inheriting = True
        try:
            spawn.prepare(process.main)
        finally:
            del process._inheriting
