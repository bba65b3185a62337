"""Fifty schemas of the kinds that users write, for outputs of a real model. Strings and arrays are
bounded, as anyone does who wants a small model to come to an end."""

from typing import Any

Schema = dict[str, Any]


def closed(required: list[str] | None = None, /, **properties: Schema) -> Schema:
    """An object of these properties alone, all of them required unless some are named."""
    return {"type": "object", "properties": properties, "additionalProperties": False,
            "required": list(properties) if required is None else required}


def text(most: int = 20, **more: Any) -> Schema:
    return {"type": "string", "maxLength": most, **more}


def pattern(regex: str) -> Schema:
    return {"type": "string", "pattern": regex}


def form(name: str) -> Schema:
    return {"type": "string", "format": name}


def whole(low: int, high: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


def many(items: Schema, low: int = 0, high: int = 4) -> Schema:
    return {"type": "array", "items": items, "minItems": low, "maxItems": high}


def one_of(*values: Any) -> Schema:
    return {"enum": list(values)}


def either(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


def ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


BOOL: Schema = {"type": "boolean"}
NULL: Schema = {"type": "null"}
SHARE: Schema = {"type": "number", "minimum": 0, "maximum": 1}
POINT = closed(x=whole(-9, 9), y=whole(-9, 9))
# a model this small would nest for ever: what is nested comes behind a choice to end
TREE = either(whole(0, 99), closed(left=ref("tree"), right=ref("tree")))
EXPRESSION = either(whole(0, 99), closed(op=one_of("+", "-", "*"), a=ref("expression"),
                                         b=ref("expression")))

SCHEMAS: dict[str, Schema] = {
    "person": closed(name=text(), age=whole(0, 120), alive=BOOL),
    "optional": closed(["id"], id=whole(1, 999), nick=text(10), mail=form("email")),
    "nested": closed(user=closed(name=text(), home=closed(city=text(), zip=pattern("^[0-9]{5}$")))),
    "deep": closed(a=closed(b=closed(c=closed(d=closed(e=whole(0, 9)))))),
    "tags": closed(tags=many(text(10), 1, 4)),
    "matrix": closed(rows=many(many(whole(0, 9), 3, 3), 3, 3)),
    "points": closed(points=many(POINT, 2, 5)),
    "tuple": {"type": "array", "prefixItems": [text(8), whole(0, 9), BOOL], "items": False,
              "minItems": 3},
    "open tuple": {"type": "array", "prefixItems": [one_of("v1")], "items": whole(0, 5),
                   "minItems": 1, "maxItems": 4},
    "unicode enum": closed(spice=one_of("🌶️", "漢字", "naïve", "Ünïcödé"), sign=one_of("→", "←")),
    "mixed enum": closed(value=one_of(1, "one", None, True, [1], {"k": "v"})),
    "const": closed(version={"const": "1.0"}, kind={"const": "café ☕"}, n=whole(0, 3)),
    "quoted": closed(said=one_of('he said "no"', "back\\slash", "tab\there", "a/b"), ok=BOOL),
    "nullable": closed(a={"type": ["string", "null"], "maxLength": 9}, b=either(whole(0, 9), NULL)),
    "scores": closed(score=SHARE, rank={"type": "integer", "exclusiveMinimum": 0, "maximum": 10}),
    "negative": closed(low=whole(-100, -1), exact={"type": "number", "minimum": -1.5,
                                                   "maximum": 2.25}),
    "multiples": closed(even={"type": "integer", "multipleOf": 2, "minimum": 0, "maximum": 20},
                        five={"type": "integer", "multipleOf": 5, "minimum": 5, "maximum": 95}),
    "lengths": closed(code=text(6, minLength=6), word=text(8, minLength=2)),
    "patterns": closed(plate=pattern("^[A-Z]{2}-[0-9]{3}$"), hex=pattern("^#[0-9a-f]{6}$")),
    "alternation": closed(answer=pattern("^(yes|no|maybe) [a-z]{1,8}$"),
                          path=pattern(r"^(/[a-z]{1,6}){1,3}$")),
    "unanchored": closed(word=text(12, pattern="[0-9]")),
    "spaces": closed(line=pattern(r"^\w{1,8}\s\S{1,8}$")),
    "dates": closed(day=form("date"), at=form("date-time"), hour=form("time")),
    "ids": closed(id=form("uuid"), host=form("ipv4")),
    "addresses": closed(mail=form("email"), v6=form("ipv6")),
    "duration": closed(lasts=form("duration")),
    "any of": closed(shape=either(closed(kind={"const": "circle"}, r=whole(1, 9)),
                                  closed(kind={"const": "square"}, side=whole(1, 9)))),
    "one of": closed(pay={"oneOf": [closed(kind={"const": "card"}, digits=pattern("^[0-9]{4}$")),
                                    closed(kind={"const": "cash"}, amount=whole(1, 99))]}),
    "one of types": closed(value={"oneOf": [whole(0, 9), text(9), NULL]}),
    "all of": {"allOf": [
        {"type": "object", "properties": {"a": whole(0, 9)}, "required": ["a"]},
        {"type": "object", "properties": {"b": text(9)}, "required": ["b"]}],
        "properties": {"a": True, "b": True}, "additionalProperties": False},
    "limits together": closed(n={"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 7}]}),
    "tree": {"$defs": {"tree": TREE}, "$ref": "#/$defs/tree"},
    "list": {"$defs": {"node": closed(["v"], v=whole(0, 9), next=either(NULL, ref("node")))},
             "$ref": "#/$defs/node"},
    "expression": {"$defs": {"expression": EXPRESSION}, **closed(formula=ref("expression"))},
    "to itself": {"type": "object", "properties": {"name": text(8), "child": {"$ref": "#"}},
                  "required": ["name"], "additionalProperties": False},
    "two definitions": {"$defs": {"city": closed(name=text(), pop=whole(0, 10**7)),
                                  "trip": closed(start=ref("city"), end=ref("city"))},
                        **closed(trips=many(ref("trip"), 1, 2))},
    "by anchor": {"$defs": {"p": POINT | {"$anchor": "point"}},
                  **closed(a={"$ref": "#point"}, b={"$ref": "#point"})},
    "named keys": {"type": "object", "patternProperties": {"^k[0-9]$": whole(0, 9)},
                   "additionalProperties": False},
    "any keys": {"type": "object", "properties": {"id": whole(0, 9)}, "required": ["id"],
                 "maxProperties": 1, "additionalProperties": BOOL},
    "keys of an enum": {"type": "object", "propertyNames": {"enum": ["red", "green", "blue"]},
                        "additionalProperties": whole(0, 255), "required": ["red"]},
    "no more than known": {"type": "object", "properties": {"a": BOOL, "b": BOOL},
                           "required": ["a"], "unevaluatedProperties": False},
    "constant of all kinds": closed(value={"const": {"a": [1, None, "x"], "b": {"c": True}}}),
    "booleans": closed(flags=many(BOOL, 4, 4), on={"const": True}),
    "empty things": closed(none={"type": "array", "maxItems": 0}, null=NULL, nothing=closed()),
    "annotated": closed(title={"title": "T", "description": "what it is called", "default": "x",
                               "examples": ["a"], **text(12)}),
    "escaped names": closed(**{"with space": whole(0, 9), 'quo"te': whole(0, 9),
                               "back\\slash": whole(0, 9), "ключ": whole(0, 9)}),
    "order": closed(id=pattern("^A-[0-9]{4}$"), items=many(closed(
        sku=pattern("^[A-Z]{3}$"), count=whole(1, 9), price={
            "type": "number", "minimum": 0, "maximum": 500}), 1, 3), paid=BOOL,
        note=either(NULL, text(30))),
    "review": closed(stars=whole(1, 5), mood=one_of("good", "bad", "so-so"), why=text(60),
                     quotes=many(text(20), 0, 2)),
    "recipe": closed(name=text(30), minutes=whole(1, 180), steps=many(text(40, minLength=3), 1, 3),
                     tools=many(one_of("pan", "pot", "oven"), 1, 3)),
    "calendar": closed(events=many(closed(["what", "when"], what=text(20), when=form("date"),
                                          who=many(text(10), 1, 2)), 1, 3)),
}
