"""Which app a name means.

Worker processes load their app by it, so nothing of the command line is loaded here.
"""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from poolhand.errors import UsageError
from poolhand.settings import APP

if TYPE_CHECKING:
    from poolhand.app import App


def load_app(name: str) -> App:
    """Import `module:attribute` and return the App that it names.

    The current folder is searched first, and stays on `sys.path`: an app may import more later.
    """
    try:
        APP.parse(name)
    except ValueError:
        raise UsageError(f"app={name!r} is not allowed; it must be {APP.allowed}") from None
    module, _, attribute = name.partition(":")
    _search_here()
    found = _imported(module, name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UsageError(f"app={name!r}: module {module!r} has no {attribute!r}")
        found = getattr(found, part)
    return _checked(found, name)


def _search_here() -> None:
    try:
        # In full, as the app may go to another folder before it imports the rest.
        here = str(Path.cwd())
    except OSError:
        # The folder is gone; what is installed can still be loaded.
        return
    if here not in sys.path:
        sys.path.insert(0, here)


def _imported(module: str, name: str) -> object:
    try:
        # What a module prints while it loads is not what was asked for.
        with redirect_stdout(sys.stderr):
            return import_module(module)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            advice = f"{error}; run this in the folder of your project"
        else:
            advice = (
                f"loading it raised {type(error).__name__}: {error}; "
                f'try `python -c "import {module}"`'
            )
        raise UsageError(f"app={name!r}: {advice}") from error


def _checked(found: object, name: str) -> App:
    from poolhand.app import App

    if isinstance(found, App):
        return found
    kind = type(found).__name__
    raise UsageError(f"app={name!r} is no App: it is of type {kind}; name an App of poolhand")
