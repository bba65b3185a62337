"""The page /docs: the document as HTML that needs no script and no other file. Pure."""

import html
from typing import Any

from octavo.server.openapi.operations import SSE

Schema = dict[str, Any]

_STYLE = """
:root { color-scheme: light dark; --line: #8886; --soft: #8881; --accent: #06c; }
@media (prefers-color-scheme: dark) { :root { --accent: #7ab8ff; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin: 2rem 0 .5rem; }
code { font: .9em ui-monospace, monospace; overflow-wrap: anywhere; }
details { border: 1px solid var(--line); border-radius: .4rem; margin: .4rem 0; }
summary { padding: .5rem .8rem; cursor: pointer; } summary:hover { background: var(--soft); }
summary b { color: var(--accent); display: inline-block; min-width: 4.2rem; }
details > div { padding: 0 .8rem .8rem; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
td, th { text-align: left; vertical-align: top; padding: .3rem .5rem;
         border-top: 1px solid var(--line); }
h4 { margin: .8rem 0 .2rem; } a { color: var(--accent); }
"""
_MAX_DEPTH = 3  # of types within types in one cell; the document has the rest
_MAX_VALUES = 12  # of an enumeration, in one cell


def docs_page(document: Schema) -> str:
    """HTML: the operations by tag, each with the fields it takes and gives."""
    schemas = document["components"]["schemas"]
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width, initial-scale=1'>",
        f"<title>Octavo: routes</title><style>{_STYLE}</style>",
        "<h1>Octavo: routes</h1><p>Model: ",
        ", ".join(f"<code>{_esc(name)}</code>" for name in schemas["ModelName"]["enum"]),
        ". The same for programs: <a href=openapi.json>openapi.json</a>. ",
        "Fields that are not in bold may be left out.</p>"]
    for tag in document["tags"]:
        parts.append(f"<h2>{_esc(tag['name'])}</h2><p>{_esc(tag['description'])}</p>")
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                if tag["name"] in operation["tags"]:
                    parts.append(_operation(method, path, operation, schemas))
    return "".join(parts)


def _operation(method: str, path: str, operation: Schema, schemas: Schema) -> str:
    parts = [f"<details id={_esc(operation['operationId'])}><summary><b>{method.upper()}</b>",
             f"<code>{_esc(path)}</code> {_esc(operation['summary'])}</summary><div>"]
    given = operation.get("parameters")
    if given:
        parts.append("<h4>Parameters</h4>" + _table(
            {p["name"]: p["schema"] for p in given}, [p["name"] for p in given if p["required"]]))
    if "requestBody" in operation:
        schema = _resolved(operation["requestBody"]["content"]["application/json"]["schema"],
                           schemas)
        parts.append("<h4>Takes</h4>" + _table(schema["properties"], schema.get("required", ())))
    done = operation["responses"].get("200")
    if done is None:
        parts.append("<p>Always refused.</p>")
    else:
        for media_type, content in done["content"].items():
            parts.append(f"<h4>Gives <code>{_esc(media_type)}</code></h4>")
            given = content["schema"]
            if media_type == SSE:  # what its events' data holds
                given = given["properties"]["data"]["anyOf"][-1]["contentSchema"]
            parts.append(_answer(given, schemas))
    return "".join(parts) + "</div></details>"


def _answer(given: Schema, schemas: Schema) -> str:
    found = []
    for option in given.get("anyOf", [given]):
        schema = _resolved(option, schemas)
        if "anyOf" in given:
            found.append(f"<p>{_esc(schema.get('description', ''))}</p>")
        if schema.get("properties"):
            found.append(_table(schema["properties"], schema.get("required", ())))
        else:
            found.append(f"<p><code>{_esc(_kind(schema))}</code></p>")
    return "".join(found)


def _table(properties: dict[str, Schema], required: Any) -> str:
    rows = []
    for name, schema in properties.items():
        shown = f"<code>{_esc(name)}</code>"
        rows.append(
            f"<tr><td>{f'<b>{shown}</b>' if name in required else shown}"
            f"<td><code>{_esc(_kind(schema))}</code>"
            f"<td>{_esc(str(schema.get('description', '')))}")
    return f"<table>{''.join(rows)}</table>"


def _resolved(schema: Schema, schemas: Schema) -> Schema:
    reference = schema.get("$ref")
    found: Schema = schemas[reference.rpartition("/")[2]] if reference else schema
    return found


def _kind(schema: Schema, depth: int = 0) -> str:
    """A type in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2].rpartition(".")[2]
    if "enum" in schema:
        values = [str(value) if not isinstance(value, bool) else str(value).lower()
                  for value in schema["enum"]]
        return " | ".join(values[:_MAX_VALUES]) + (" | ..." if len(values) > _MAX_VALUES else "")
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        kinds = [_kind(option, depth + 1) for option in options if option != {"type": "null"}]
        return " | ".join(dict.fromkeys(kinds))
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return " | ".join(kind)
    if kind == "array":
        inner = _kind(schema.get("items", {}), depth + 1) if depth < _MAX_DEPTH else "..."
        return f"[{inner}]"
    if kind == "object" and schema.get("properties") and depth < _MAX_DEPTH:
        inner = ", ".join(f"{name}: {_kind(value, depth + 1)}"
                          for name, value in schema["properties"].items())
        return f"{{{inner}}}"
    least = schema.get("minimum", schema.get("exclusiveMinimum"))
    if least is not None or "maximum" in schema:
        return f"{kind} {'' if least is None else least}..{schema.get('maximum', '')}"
    return str(kind)


def _esc(text: object) -> str:
    return html.escape(str(text))
