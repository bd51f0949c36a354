"""Schemas: which calls a task accepts, for other processes and other languages."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from typing import Any

import msgspec

from poolhand.durable.calls.signature import Signature
from poolhand.rules.json_schema import NEEDED
from poolhand.wire.envelope import VERSION
from poolhand.wire.wire import Wire

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
