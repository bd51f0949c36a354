"""Declarations: which functions can be tasks; their names, files, annotations and JSON Schemas."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from inspect import unwrap
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec

from poolhand.errors import UsageError
from poolhand.rules.json_schema import NEEDED
from poolhand.rules.validation import is_text, shown
from poolhand.wire.envelope import VERSION
from poolhand.wire.payload import Wire

if TYPE_CHECKING:
    from poolhand.durable.calls.signature import Signature

# A child of multiprocessing imports the script of its parent under the second name.
SCRIPTS = ("__main__", "__mp_main__")
MAIN = ".__main__"
SOURCE_PARTS = 3  # folders, and the file
# Names of folders that a deploy makes: r41, 20260131120000, v1.2.0, the start of a commit's hash.
RELEASE = re.compile(r"(?=.*\d)[0-9a-f]{7,40}|(?P<kind>[a-z]*[-_]?)\d[\d._-]*", re.IGNORECASE)


def name_of_task(fn: Callable[..., Any]) -> str:
    """Return the name by which every process knows a function, however it was started."""
    module, path = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if module is None or path is None:
        raise UsageError(f"{fn!r} has no name to be found by; give it one: @app.task(name=…)")
    return f"{_module_of(fn, module)}.{path}"


def name_of_global(fn: Callable[..., Any]) -> str:
    """Return the name of a function defined at module level; raise for others with a fix."""
    name = name_of_task(fn)
    if "<" not in fn.__qualname__:
        return name
    is_lambda = fn.__name__ == "<lambda>"
    wanted = "send_mail" if is_lambda else fn.__name__
    kind = "a lambda" if is_lambda else "defined inside another function"
    wraps = "" if is_lambda else " (or is it the wrapper of a decorator? Use functools.wraps there)"
    raise UsageError(
        f"{shown(name)} is {kind}, so its name means nothing to other processes, and two of them "
        "would have the same one; define it at the top level of a module, or give it a name: "
        f'@app.task(name="{wanted}"), @app.agent(name="{wanted}"){wraps}'
    )


def source_of(fn: Callable[..., Any]) -> str:
    """Return the end of the path of a function's file; empty if it has none."""
    file = getattr(unwrap(fn), "__globals__", {}).get("__file__")
    if not isinstance(file, str) or file.startswith("<"):
        return ""
    return "/".join(Path(file).absolute().parts[-SOURCE_PARTS:])


def is_same_source(one: str, other: str, name: str) -> bool:
    """Return whether two files can be the module of a task; `name` is the longer of its two names.

    `shop/tasks.py` and `bank/tasks.py` are not both `shop.tasks`, on whatever machine they are.
    """
    parts = max(1, min(name.count("."), SOURCE_PARTS))
    return one != "" and one.split("/")[-parts:] == other.split("/")[-parts:]


def is_other_file(name: str, own: str, other: str) -> bool:
    """Return whether a task is in another file than one of the same name, made from its module.

    The two may be different tasks, or one program in two folders. A name that was given with
    `name=` says that they are one task.
    """
    if not own or not other or own == other:
        return False
    module = own.removesuffix("/__init__.py").removesuffix(".py").rpartition("/")[2]
    return module in name.split(".")[:-1]


def is_other_release(own: str, other: str) -> bool:
    """Return whether two files differ only in folders that are releases of one program."""
    pairs = list(zip(own.split("/"), other.split("/"), strict=False))
    if own.count("/") != other.count("/") or pairs[-1][0] != pairs[-1][1]:
        return False
    return all(one == two or _release_of(one) == _release_of(two) != one for one, two in pairs[:-1])


def _release_of(folder: str) -> str:
    """Return what the folders of all releases have in common; the folder itself if it is none."""
    found = RELEASE.fullmatch(folder)
    return folder if found is None else f"{found['kind'] or ''}*"


def is_defined_anew(old: Callable[..., Any], new: Callable[..., Any]) -> bool:
    """Return whether `new` redefines `old`: its module or notebook cell was run again."""
    old, new = unwrap(old), unwrap(new)
    if old == new:
        return True
    if _place_of(old) != _place_of(new):
        return False
    was, now = getattr(old, "__code__", None), getattr(new, "__code__", None)
    if was is None or now is None:
        return True
    # The same code object, run twice: a loop or a function that makes tasks, or a method of two
    # objects. A reloaded module is compiled again.
    if was is now:
        return False
    lines = {was.co_firstlineno, now.co_firstlineno}
    return len(lines) == 1 or not lines <= _first_lines(now.co_filename, now.co_name)


def _place_of(fn: Callable[..., Any]) -> tuple[Any, Any]:
    return getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)


def _first_lines(file: str, name: str) -> set[int]:
    """Return the first lines of functions of a name in a file, as the file is now."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, ValueError, SyntaxError):
        # A notebook cell, or text that was typed in.
        return set()
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = (node for node in ast.walk(tree) if isinstance(node, functions) and node.name == name)
    return {min(part.lineno for part in (*node.decorator_list, node)) for node in found}


def _module_of(fn: Callable[..., Any], module: str) -> str:
    """Return the full path of the module of a function."""
    # From the function's own globals: while a child imports it, `__main__` is another module.
    known = getattr(unwrap(fn), "__globals__", None)
    if known is None:
        known = vars(sys.modules.get(module, sys.modules["__main__"]))
    file = known.get("__file__")
    if module not in SCRIPTS:
        full = _path_of(file) if known.get("__name__") == module else module
        # A module imported from inside its package, as scripts next to it do.
        return (full if full.endswith(f".{module}") else module).removesuffix(MAIN)
    spec = known.get("__spec__")
    # For a folder that is run as a script the spec's name is `__main__`, too.
    if spec is not None and spec.name not in SCRIPTS:
        return str(spec.name).removesuffix(MAIN)
    found = _path_of(file)
    if found == "__main__" and file:
        return Path(file).absolute().parent.name or found
    return found.removesuffix(MAIN) or "__main__"


def _path_of(file: Any) -> str:
    """Return the dotted path of a file, from the outermost folder that is a package."""
    # Text that was typed in, or came through a pipe, has no file: "<stdin>".
    if not isinstance(file, str) or not file or file.startswith("<"):
        return ""
    path = Path(file).absolute()
    parts = [] if path.stem == "__init__" else [path.stem]
    for folder in path.parents:
        if not (folder / "__init__.py").exists():
            break
        parts.insert(0, folder.name)
    return ".".join(parts)


OF_OBJECTS = ("self", "cls")


def checked_function(fn: Any, decorator: str) -> Callable[..., Any]:
    """Return the function that a decorator was given, such as "@app.task", or raise."""
    if isinstance(fn, staticmethod):
        # Only the function itself shows whether it is async.
        fn = fn.__func__
    if inspect.iscoroutine(fn):
        fn.close()
        raise UsageError(
            f"{decorator} takes a function, not a coroutine: give {fn.__name__}, not "
            f"{fn.__name__}(…)"
        )
    if not callable(fn):
        raise UsageError(f"{decorator} takes a function; {_other(fn, decorator)}")
    if _is_method(fn):
        (first, *_), name = inspect.signature(fn).parameters, fn.__qualname__
        raise UsageError(
            f"{decorator}: {name} is a method, and no {first!r} is kept with a job; make it a "
            f"function of the module, or a @staticmethod without {first!r}"
        )
    found: Callable[..., Any] = fn
    return found


def _other(value: object, decorator: str) -> str:
    """Return what to write instead of a value that is not a function."""
    given = shown(value)
    if isinstance(value, classmethod):
        return (
            "a classmethod needs its class, which is not kept with a job; make it a function of "
            "the module, or a @staticmethod"
        )
    if decorator in NAMED and is_text(value):
        pool = f", or to choose its pool {decorator}(pool={given})" if "app" in decorator else ""
        return f"{given} is a text: to name it write {decorator}(name={given}){pool}"
    return f"{given} cannot be called; write {decorator} above `def` or `async def`"


NAMED = ("@app.task", "@app.agent", "@tool")


def _is_method(fn: Any) -> bool:
    """Return whether a function is defined in a class and takes `self` or `cls`."""
    path = getattr(fn, "__qualname__", "").rsplit(".", 2)
    if not inspect.isfunction(fn) or len(path) < 2 or path[-2] == "<locals>":
        return False
    return next(iter(inspect.signature(fn).parameters), None) in OF_OBJECTS


def annotations_of(fn: Callable[..., Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the resolved annotations of a function, and the texts of those that cannot be."""
    try:
        return get_type_hints(fn, include_extras=True), {}
    except Exception:
        # Resolve one by one: an annotation that fails must not prevent the run or hide the others.
        known = getattr(fn, "__annotations__", {})
        found = {name: _hint(fn, annotation) for name, annotation in known.items()}
        hints = {name: hint for name, hint in found.items() if hint is not None}
        return hints, {name: str(known[name]) for name in known if name not in hints}


def _hint(fn: Callable[..., Any], annotation: Any) -> Any:
    one = SimpleNamespace(__annotations__={"it": annotation})
    try:
        hints = get_type_hints(one, getattr(fn, "__globals__", {}), include_extras=True)
    except Exception:
        return None
    return hints["it"]


VERSION_LENGTH = 8


def arguments_schema(signature: Signature) -> dict[str, Any]:
    """Return the JSON Schema of the arguments of a call; a type without one allows anything."""
    fields = signature.fields()
    definitions: dict[str, Any] = {}
    properties = {name: _schema(kind, definitions) for name, (kind, _) in fields.items()}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": [name for name, (_, required) in fields.items() if required],
        "additionalProperties": False,
    }
    return {**schema, "$defs": definitions} if definitions else schema


def version_of(signature: Signature, wire: Wire) -> str:
    """Return a short digest of everything that decides which stored calls can be read."""
    described = _without_notes(arguments_schema(signature))
    schema = msgspec.json.encode(described, order="deterministic")
    reader = repr((VERSION, wire.limits, wire.pickle is not None, signature.kinds))
    return sha256(reader.encode() + schema).hexdigest()[:VERSION_LENGTH]


def _without_notes(schema: Any) -> Any:
    """Return a schema without our own notes, which must not change the version."""
    if isinstance(schema, dict):
        return {name: _without_notes(one) for name, one in schema.items() if name != NEEDED}
    return [_without_notes(one) for one in schema] if isinstance(schema, list) else schema


def _schema(kind: Any, definitions: dict[str, Any]) -> Any:
    for attempt in (_by_msgspec, _by_pydantic):
        try:
            schema, found = attempt(kind)
        except Exception:  # noqa: S112 - types of users; the next one may know them
            continue
        definitions |= found
        return schema
    return {}


def _by_msgspec(kind: Any) -> tuple[Any, dict[str, Any]]:
    (schema,), found = msgspec.json.schema_components([kind], schema_hook=_model_schema)
    _lift({"schema": schema, "found": dict(found)}, found)
    return schema, found


def _lift(schema: Any, definitions: dict[str, Any]) -> None:
    """Move the definitions of models to the top level, where references look for them."""
    if isinstance(schema, dict):
        definitions.update(schema.pop("$defs", {}))
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            _lift(part, definitions)


def _model_schema(kind: Any) -> dict[str, Any]:
    make: Callable[..., dict[str, Any]] | None = getattr(kind, "model_json_schema", None)
    if make is None:
        raise NotImplementedError
    return make(schema_generator=_generator()) if _is_pydantic(kind) else make()


def _is_pydantic(kind: Any) -> bool:
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)


def _by_pydantic(kind: Any) -> tuple[Any, dict[str, Any]]:
    """Return the schema of a type that contains pydantic models; pydantic is imported then."""
    adapter = sys.modules["pydantic"].TypeAdapter(kind)
    schema = adapter.json_schema(ref_template="#/$defs/{model}", schema_generator=_generator())
    return schema, schema.pop("$defs", {})


@cache
def _generator() -> Any:
    """Return a pydantic schema generator that notes required fields without an alias."""
    usual = sys.modules["pydantic.json_schema"].GenerateJsonSchema

    def model_schema(self: Any, schema: Any) -> Any:
        return _noted(usual.model_schema(self, schema), schema["cls"])

    def dataclass_schema(self: Any, schema: Any) -> Any:
        return _noted(usual.dataclass_schema(self, schema), schema["cls"])

    made = {"model_schema": model_schema, "dataclass_schema": dataclass_schema}
    return type("Generator", (usual,), made)


def _noted(schema: dict[str, Any], kind: Any) -> dict[str, Any]:
    """Note which required fields every value of a model must have, if not all of them."""
    fields = getattr(kind, "__pydantic_fields__", {})
    decorators = getattr(kind, "__pydantic_decorators__", None)
    validators = getattr(decorators, "model_validators", {}).values()
    if any(one.info.mode != "after" for one in validators):
        # A validator of the user may fill in missing fields.
        needed = []
    else:
        needed = [name for name in schema.get("required", ()) if _has_one_name(fields.get(name))]
    return schema if needed == schema.get("required", []) else {**schema, NEEDED: needed}


def _has_one_name(field: Any) -> bool:
    """Return whether a field can be given by its own name only."""
    return field is not None and field.alias is None and field.validation_alias is None
