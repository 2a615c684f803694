"""Examples of requests and answers, put together from those of their fields."""

from collections.abc import Mapping
from typing import Any

Schemas = Mapping[str, Mapping[str, Any]]

_BY_FORMAT = {"date-time": "2026-01-31T12:00:00Z"}
_BY_TYPE = {"string": "text", "integer": 1, "number": 0.5, "boolean": True, "null": None, "object": {}}


def example(schema: Mapping[str, Any], schemas: Schemas) -> Any:
    """A value that a schema allows: its own first example, or else one of its parts. `schemas`: those that
    references name."""
    if examples := schema.get("examples"):
        return examples[0]
    if "$ref" in schema:
        return example(schemas[str(schema["$ref"]).rpartition("/")[2]], schemas)
    if isinstance(default := schema.get("default"), (bool, int, float, str)):
        return default
    if "const" in schema or "enum" in schema:
        return schema.get("const") or schema["enum"][0]
    for choice in schema.get("anyOf", []):
        return example(choice, schemas)
    match schema.get("type"):
        case "object" if "properties" in schema:
            return {name: example(part, schemas) for name, part in schema["properties"].items()}
        case "array":
            return [example(schema["items"], schemas)] if schema.get("items") else []
        case kind:
            return _BY_FORMAT.get(schema.get("format", ""), _BY_TYPE.get(str(kind)))


def complete(document: Mapping[str, Any]) -> None:
    """Give every body of an OpenAPI document that has no example one."""
    schemas = document["components"]["schemas"]
    for path in document["paths"].values():
        for operation in path.values():
            answers = operation["responses"].values()
            for part in (operation.get("requestBody", {}), *answers):
                for content in part.get("content", {}).values():
                    if not content.keys() & {"example", "examples"}:
                        content["example"] = example(content.get("schema", {}), schemas)
