"""App names: import `module:attribute` and return the App it names.

Worker processes load their app with this module, so it imports nothing of the command line.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poolhand.errors import UsageError
from poolhand.runtime import GUARD, Importing, current_import, importing
from poolhand.setting_table import APP

if TYPE_CHECKING:
    from poolhand.app import App


def load_app(name: str, warn: Callable[[str], None] = lambda text: None) -> App:
    """Import `module:attribute` and return the App that it names.

    The current folder is searched first, and stays on `sys.path`: an app may import more later. A
    module that submits or runs jobs while it is imported is refused. A module that runs an event
    loop for something else is imported; `warn` is called at once, as the loop may never end.
    """
    try:
        APP.parse(name)
    except ValueError:
        raise UsageError(f"app={name!r} is not allowed; it must be {APP.allowed}") from None
    module, _, attribute = name.partition(":")
    _search_here()
    found = _imported(module, name, warn)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UsageError(
                f"app={name!r}: module {module!r} has no {attribute!r}{_apps_of(module)}"
            )
        found = getattr(found, part)
    return _checked(found, name)


def is_module(name: str) -> bool:
    """Return whether the current folder has a module or package of this dotted name."""
    path = Path(*name.split("."))
    return name != "" and (path.with_name(f"{path.name}.py").is_file() or path.is_dir())


def _meant_module(module: str, name: str) -> str:
    """Return what to do about a module that is not found."""
    stem = module.removesuffix(".py")
    if stem != module and is_module(stem):
        return f"did you mean {stem}:{name.partition(':')[2]}?"
    return "run this in the folder of your project"


def _apps_of(module: str) -> str:
    """Return the names of the apps that a loaded module has, as a hint."""
    from poolhand.app import App

    found = [one for one, value in vars(sys.modules[module]).items() if isinstance(value, App)]
    return f"; did you mean {' or '.join(f'{module}:{one}' for one in found)}?" if found else ""


def _search_here() -> None:
    try:
        # The absolute path, because the app may change folders before it imports the rest.
        here = str(Path.cwd())
    except OSError:
        # The folder was deleted; installed modules can still be loaded.
        return
    if here not in sys.path:
        sys.path.insert(0, here)


def _imported(module: str, name: str, warn: Callable[[str], None]) -> object:
    under_way = Importing(module)
    try:
        # Output of a module while it is imported must not mix with the output of the command.
        with redirect_stdout(sys.stderr), _watched(under_way, warn):
            return import_module(module)
    except (Exception, SystemExit) as error:
        if under_way.refused is not None:
            raise UsageError(f"app={name!r}: {under_way.refused.message}") from error
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            advice = f"{error}; {_meant_module(module, name)}"
        else:
            advice = (
                f"loading it raised {type(error).__name__}: {error}; "
                f'try `python -c "import {module}"`'
            )
        raise UsageError(f"app={name!r}: {advice}") from error


@contextmanager
def _watched(under_way: Importing, warn: Callable[[str], None]) -> Iterator[None]:
    """Mark an import as running, and warn once if it runs an event loop."""
    warned: list[str] = []

    def notice() -> None:
        if current_import() is under_way and not warned:
            warned.append(
                f"{under_way.module} runs an event loop (asyncio.run or the like) while it is "
                f"imported, as every worker process imports it; {GUARD}"
            )
            warn(warned[0])

    # The second covers event loops of other libraries, which have their own run_forever.
    kinds: tuple[tuple[Any, str], ...] = (
        (asyncio.BaseEventLoop, "run_forever"),
        (asyncio.Runner, "run"),
    )
    usual = [getattr(kind, verb) for kind, verb in kinds]
    token = importing.set(under_way)
    try:
        for (kind, verb), method in zip(kinds, usual, strict=True):
            setattr(kind, verb, _noticed(method, notice))
        yield
    finally:
        for (kind, verb), method in zip(kinds, usual, strict=True):
            setattr(kind, verb, method)
        importing.reset(token)
        under_way.is_over = True


def _noticed(method: Callable[..., Any], notice: Callable[[], None]) -> Callable[..., Any]:
    @wraps(method)
    def noticed(*args: Any, **options: Any) -> Any:
        notice()
        return method(*args, **options)

    return noticed


def _checked(found: object, name: str) -> App:
    from poolhand.app import App

    if isinstance(found, App):
        return found
    kind = type(found).__name__
    raise UsageError(f"app={name!r} is not an App: it is of type {kind}; name an App of poolhand")
