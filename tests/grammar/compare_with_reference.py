"""Grammars of JSON schemas against the jsonschema package.

usage: compare_with_reference.py PROGRAM [SCHEMAS]
Random schemas. Every text the grammar makes is JSON that the schema allows; values made for the
schema are accepted however they are spaced; values it forbids, and damaged texts, are rejected.
Exits with 77 (skipped) where jsonschema is missing. LC_TEST_SEED repeats a run.
"""

import decimal
import json
import os
import random
import re
import string
import subprocess
import sys

try:
    import jsonschema
except ImportError as error:
    print(f"skipped: {error}; scripts/setup-test-python installs tests/requirements.txt")
    sys.exit(77)

SEED = int(os.environ.get("LC_TEST_SEED", random.randrange(1 << 62)))
print("LC_TEST_SEED", SEED, flush=True)
RANDOM = random.Random(SEED)

# Expressions with a maker of texts that match.
PATTERNS = [
    ("^[a-z]{2,5}$", lambda r: "".join(r.choices("abcxyz", k=r.randint(2, 5)))),
    ("^(foo|bar)-\\d+$", lambda r: r.choice(["foo", "bar"]) + "-" + str(r.randrange(1000))),
    ("ab+c", lambda r: "x\"" * r.randrange(2) + "a" + "b" * r.randint(1, 4) + "c\n" * r.randint(1, 2)),
    ("^[^\"\\\\]*$", lambda r: "".join(r.choices("aé€😀 {}", k=r.randrange(6)))),
    ("^(a?b)*$|^q", lambda r: r.choice(["", "ab", "bab", "bb", "q\t…"])),
    ("\\u00e9[\\w-]$", lambda r: "zé" + r.choice("a-_0")),
    ("^\\S+@\\S+\\.(com|org)$", lambda r: "me@" + r.choice(["a", "b.c"]) + r.choice([".com", ".org"])),
]
LETTERS = "abcdefgh \"\\\n\t/{}[]:,é€😀\x7f"


def text(r, low=0, high=8):
    return "".join(r.choices(LETTERS, k=r.randint(low, high)))


class Maker:
    """A schema, and valid values for it."""

    def __init__(self, r):
        self.r = r
        self.defs = {}

    def schema(self, depth):
        """(schema, function that makes a valid value)"""
        kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "pattern", "types"]
        if depth > 0:
            kinds += ["object", "array", "tuple", "anyOf", "map", "allOf", "oneOf", "ref", "any"] * 2
        return getattr(self, "make_" + self.r.choice(kinds))(depth)

    def make_string(self, _):
        low = self.r.choice([0, 0, 1, 3])
        high = self.r.choice([None, low, low + 4])
        schema = {"type": "string"}
        if low:
            schema["minLength"] = low
        if high is not None:
            schema["maxLength"] = high
        return schema, lambda r: text(r, low, low + 6 if high is None else high)

    def make_pattern(self, _):
        pattern, make = self.r.choice(PATTERNS)
        schema = {"type": "string", "pattern": pattern}
        if self.r.random() < 0.3:
            schema["maxLength"] = 12

            def short(r):
                while len(value := make(r)) > 12:
                    pass
                return value
            return schema, short
        return schema, make

    def bounds(self, scale):
        low, high = sorted(round(self.r.uniform(-scale, scale), self.r.choice([0, 0, 1, 2]))
                           for _ in range(2))
        return low, high

    def make_integer(self, _):
        schema = {"type": "integer"}
        low, high = self.bounds(self.r.choice([2, 20, 3000, 10**7]))
        low, high = int(low), int(high)
        if self.r.random() < 0.6:
            schema["minimum"] = low
        if self.r.random() < 0.6:
            schema["maximum"] = high
        if self.r.random() < 0.2 and "maximum" in schema:
            schema["exclusiveMaximum"] = schema.pop("maximum") + 1
        return schema, lambda r: r.randint(low, high)

    def make_number(self, _):
        schema = {"type": "number"}
        low, high = self.bounds(self.r.choice([1, 30, 5000]))
        high += 0.5
        if self.r.random() < 0.6:
            schema[self.r.choice(["minimum", "exclusiveMinimum"])] = low
        if self.r.random() < 0.6:
            schema[self.r.choice(["maximum", "exclusiveMaximum"])] = high
        # Of four digits: numbers with bounds have no exponent, and smaller ones are written with one.
        return schema, lambda r: round((low + high) / 2 + r.uniform(-0.2, 0.2), 4)

    def make_boolean(self, _):
        return {"type": "boolean"}, lambda r: r.random() < 0.5

    def make_null(self, _):
        return {"type": "null"}, lambda r: None

    def constant(self):
        return self.r.choice([text(self.r), self.r.randrange(-50, 50), None, True, 1.5, [1, "a"],
                              {"k": [None]}])

    def make_enum(self, _):
        values = []
        for _ in range(self.r.randint(1, 4)):
            value = self.constant()
            if json.dumps(value) not in map(json.dumps, values):
                values.append(value)
        return {"enum": values}, lambda r: r.choice(values)

    def make_const(self, _):
        value = self.constant()
        return {"const": value}, lambda r: value

    def make_types(self, _):
        schema = {"type": ["string", "null"], "maxLength": 3}
        return schema, lambda r: r.choice([None, text(r, 0, 3)])

    def make_any(self, _):
        return self.r.choice([{}, True]), lambda r: r.choice(
            [1, "x", None, [], {}, [1, {"a": []}], {"b": "c", "d": [False]}])

    def names(self):
        names = []
        for _ in range(self.r.randint(0, 5)):
            name = self.r.choice(["a", "ab", "abc", "b", text(self.r, 0, 3)])
            if name not in names:
                names.append(name)
        return names

    def make_object(self, depth):
        members = [(name, *self.schema(depth - 1), self.r.random() < 0.5) for name in self.names()]
        schema = {"type": "object", "properties": {m[0]: m[1] for m in members}}
        required = [m[0] for m in members if m[3]]
        if required or self.r.random() < 0.5:
            schema["required"] = self.r.sample(required, len(required))
        more = self.r.choice([None, False, True, "schema"])
        more_make = None
        if more == "schema":
            more, more_make = self.schema(depth - 1)
        elif more is True:
            more_make = self.make_any(0)[1]
        if more is not None:
            schema["additionalProperties"] = more

        def make(r):
            value = {name: member(r) for name, _, member, needed in members
                     if needed or r.random() < 0.5}
            if more_make is not None:
                for _ in range(r.randrange(3)):
                    name = text(r, 0, 3)
                    if name not in schema["properties"]:
                        value[name] = more_make(r)
            return value
        return schema, make

    def make_map(self, depth):
        values, make_value = self.schema(depth - 1)
        low = self.r.choice([0, 0, 1])
        schema = {"type": "object", "additionalProperties": values}
        if low:
            schema["minProperties"] = low
        return schema, lambda r: {str(i) + text(r, 0, 2): make_value(r)
                                  for i in range(r.randint(low, 3))}

    def make_array(self, depth):
        items, make_item = self.schema(depth - 1)
        low = self.r.choice([0, 0, 1, 2])
        high = self.r.choice([None, low, low + 2])
        schema = {"type": "array", "items": items}
        if low:
            schema["minItems"] = low
        if high is not None:
            schema["maxItems"] = high
        return schema, lambda r: [make_item(r) for _ in
                                  range(r.randint(low, low + 3 if high is None else high))]

    def make_tuple(self, depth):
        parts = [self.schema(depth - 1) for _ in range(self.r.randint(1, 3))]
        schema = {"type": "array", "prefixItems": [p[0] for p in parts], "items": False,
                  "minItems": len(parts)}
        return schema, lambda r: [p[1](r) for p in parts]

    def make_anyOf(self, depth):
        parts = [self.schema(depth - 1) for _ in range(self.r.randint(1, 3))]
        return {"anyOf": [p[0] for p in parts]}, lambda r: r.choice(parts)[1](r)

    def make_oneOf(self, depth):
        parts = []
        for i in range(self.r.randint(1, 3)):
            inner, make = self.schema(depth - 1)
            schema = {"type": "object", "properties": {"kind": {"const": i}, "v": inner},
                      "required": ["kind", "v"]}
            parts.append((schema, lambda r, i=i, make=make: {"kind": i, "v": make(r)}))
        return {"oneOf": [p[0] for p in parts]}, lambda r: r.choice(parts)[1](r)

    def make_allOf(self, depth):
        first, make_first = self.schema(depth - 1)
        second, make_second = self.schema(depth - 1)
        a = {"type": "object", "properties": {"a": first, "n": {"type": "integer", "minimum": 3}},
             "required": ["a"]}
        b = {"properties": {"n": {"maximum": 9}, "b": second}, "required": ["b"]}
        return {"allOf": [a, b]}, lambda r: {"a": make_first(r), "n": r.randint(3, 9),
                                             "b": make_second(r)}

    def make_ref(self, depth):
        name = f"d{len(self.defs)}"
        self.defs[name] = {}
        inner, make_inner = self.schema(depth - 1)
        self.defs[name].update({
            "type": "object",
            "properties": {"value": inner, "more": {"type": "array",
                                                    "items": {"$ref": f"#/$defs/{name}"}}},
            "required": ["value"], "additionalProperties": False})

        def make(r, left=3):
            value = {"value": make_inner(r)}
            if left and r.random() < 0.5:
                value["more"] = [make(r, left - 1) for _ in range(r.randrange(3))]
            return value
        return {"$ref": f"#/$defs/{name}"}, make


def write(value, style):
    if style == "compact":
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if style == "indented":
        source = json.dumps(value, ensure_ascii=False, indent=2)
        # A grammar's lines begin with at most 24 spaces; strings have no new lines of their own.
        if "\n" + " " * 25 not in source:
            return source
    return json.dumps(value, ensure_ascii=False)


def as_written(text):
    """A number: a double may round a value onto a bound that it is off."""
    value = decimal.Decimal(text)
    whole = value.adjusted() < 400 and value == value.to_integral_value()
    return int(value) if whole else value


def valid(validator, source):
    try:
        value = json.loads(source, parse_float=as_written)
    except ValueError:
        return False
    return validator.is_valid(value)


def damage(r, source):
    at = r.randrange(len(source) + 1)
    kind = r.randrange(3)
    if kind == 0 and at < len(source):
        return source[:at] + source[at + 1:]
    if kind == 1:
        return source[:at] + r.choice("\"{}[],:0a- ") + source[at:]
    return source[:at]


def strip_constants(schema):
    """Constants within are written compactly only."""
    found = re.search(r'"(const|enum)"', json.dumps(schema))
    return ["compact"] if found else ["compact", "plain", "indented"]


def main():
    program = subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    schemas = int(sys.argv[2]) if len(sys.argv) > 2 else 400
    counts = {"accepted": 0, "rejected": 0, "made": 0, "endless": 0, "refused": 0}
    failures = []
    for number in range(schemas):
        maker = Maker(RANDOM)
        schema, make = maker.schema(RANDOM.randint(0, 3))
        if maker.defs:
            schema = {"$defs": maker.defs, "allOf": [schema]} if RANDOM.random() < 0.3 else {
                "$defs": maker.defs, "anyOf": [schema]}
        jsonschema.Draft202012Validator.check_schema(schema)
        validator = jsonschema.Draft202012Validator(
            json.loads(json.dumps(schema), parse_float=as_written))
        styles = strip_constants(schema)
        good, other = [], []
        for _ in range(8):
            value = make(RANDOM)
            good.append(write(value, RANDOM.choice(styles)))
            assert valid(validator, good[-1]), (schema, good[-1])
            other += [damage(RANDOM, good[-1]) for _ in range(4)]
        other += [json.dumps(Maker(RANDOM).schema(2)[1](RANDOM)) for _ in range(5)]
        program.stdin.write(json.dumps({"schema": schema, "texts": good + other, "samples": 6,
                                        "seed": RANDOM.randrange(1 << 60)}) + "\n")
        program.stdin.flush()
        answer = json.loads(program.stdout.readline())
        if "error" in answer:
            counts["refused"] += 1
            failures.append(("refused", schema, answer["error"]))
            continue
        accepted = answer["accepted"]
        for source, is_accepted in zip(good, accepted):
            counts["accepted"] += 1
            if not is_accepted:
                failures.append(("not accepted", schema, source))
        for source, is_accepted in zip(other, accepted[len(good):]):
            counts["rejected"] += not is_accepted
            if is_accepted and not valid(validator, source):
                failures.append(("accepted", schema, source))
        for source in answer["samples"]:
            if source is None:
                counts["endless"] += 1
                continue
            counts["made"] += 1
            if not valid(validator, source):
                failures.append(("made", schema, source))
    program.stdin.close()
    # Strings that must hold an @ somewhere take a random walk long; little else does.
    if counts["endless"] * 10 > counts["made"]:
        failures.append(("endless", counts, ""))
    print(counts)
    for kind, schema, source in failures[:5]:
        print(f"FAILED ({kind})\n  {json.dumps(schema)}\n  {source!r}")
    print(len(failures), "failures")
    sys.exit(1 if failures else 0)


main()
