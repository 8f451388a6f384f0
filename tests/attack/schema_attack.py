"""Schemas that are small but expand to a lot, or are large in one place.

usage: schema_attack.py PROGRAM MODEL_DIRECTORY
"""

import json
import threading

import mutants
import victim


def ask(schema, **fields):
    return {"prompt": "x", "max_tokens": 1, "guided_json": schema, **fields}


def tool(name, parameters=None):
    return {"type": "function", "function": {"name": name, "parameters": parameters or {}}}


def ref(name):
    return {"$ref": f"#/$defs/{name}"}


class Schemas(victim.Attack):
    def taken(self, schema):
        status, answer = self.bounded("/v1/completions", ask(schema))
        self.assertEqual(status, 200, str(answer)[:300])

    def refused(self, schema, part=""):
        self.refuse("/v1/completions", ask(schema), part)

    def bounded_schema(self, schema):
        self.bounded("/v1/completions", ask(schema))

    def test_references_that_double(self):
        leaf = {"type": "object", "properties": {"a": {"type": "integer"}}}
        for levels in (20, 40, 60):
            definitions = {"d0": leaf}
            for i in range(levels):
                definitions[f"d{i + 1}"] = {"allOf": [ref(f"d{i}"), ref(f"d{i}")]}
            self.bounded_schema({"$defs": definitions, **ref(f"d{levels}")})
            # Two families that combine each other, in either order: no two schemas are equal.
            definitions = {"a0": {"properties": {"x": {"minimum": 1}}},
                           "b0": {"properties": {"x": {"maximum": 9}}}}
            for i in range(levels):
                definitions[f"a{i + 1}"] = {"allOf": [ref(f"a{i}"), ref(f"b{i}")]}
                definitions[f"b{i + 1}"] = {"allOf": [ref(f"b{i}"), ref(f"a{i}")]}
            self.bounded_schema({"$defs": definitions, **ref(f"a{levels}")})
            # With other fields next to the reference.
            definitions = {"d0": leaf}
            for i in range(levels):
                definitions[f"d{i + 1}"] = {"allOf": [ref(f"d{i}"), {**ref(f"d{i}"), "minProperties": 0}],
                                            "type": "object"}
            self.bounded_schema({"$defs": definitions, **ref(f"d{levels}")})

    def test_values_that_double(self):
        for keyword in ("properties", "items"):
            definitions = {"d0": {"type": "integer"}}
            for i in range(30):
                inner = {"allOf": [ref(f"d{i}"), {"anyOf": [ref(f"d{i}"), {"type": "null"}]}]}
                definitions[f"d{i + 1}"] = {"properties": {"x": inner, f"y{i}": inner}} \
                    if keyword == "properties" else {"items": inner}
            self.bounded_schema({"$defs": definitions, **ref("d30")})

    def test_circles(self):
        self.refused({"$defs": {"a": ref("b"), "b": ref("a")}, **ref("a")}, "circular")
        self.refused({"$defs": {"a": {"allOf": [ref("a"), {"type": "object"}]}}, **ref("a")}, "circular")
        self.bounded_schema({"allOf": [{"$ref": "#"}]})
        self.bounded_schema({"properties": {"a": {"allOf": [{"$ref": "#"}, {"required": ["a"]}]}}})
        self.bounded_schema({"properties": {"a": {"allOf": [{"$ref": "#/properties/b"}, {"minProperties": 1}]},
                                            "b": {"allOf": [{"$ref": "#/properties/a"}, {"properties": {
                                                "a": {"$ref": "#"}}}]}}})

    def test_choices(self):
        self.taken({"oneOf": [{"const": i} for i in range(500)]})
        self.taken({"oneOf": [{"type": "object", "required": ["kind"], "properties": {
            "kind": {"const": f"k{i}"}, "value": {"type": "integer"}}} for i in range(150)]})
        self.bounded_schema({"oneOf": [{"const": i} for i in range(4000)]})
        self.bounded_schema({"oneOf": [{"enum": [f"{i}-{j}" for j in range(50)]} for i in range(600)]})
        self.bounded_schema({"anyOf": [{"const": i} for i in range(9000)]})
        self.bounded_schema({"allOf": [{"anyOf": [{"const": i} for i in range(31)]}] * 40})

    def test_enumerations(self):
        self.taken({"enum": [f"value number {i}" for i in range(5000)]})
        self.bounded_schema({"enum": [f"v{i}" for i in range(60_000)]})
        self.bounded_schema({"enum": list(range(100_000))})
        big = [f"v{i}" for i in range(60_000)]
        self.taken({"allOf": [{"enum": big}, {"enum": big[::-1]}]})
        self.bounded_schema({"allOf": [{"enum": big}, {"enum": [float(i) for i in range(60_000)]}]})

    def test_names(self):
        names = [f"name{i}" for i in range(9000)]
        for some in (names, [f"name{i}" for i in range(60_000)]):
            self.bounded_schema({"required": some})
            self.bounded_schema({"allOf": [{"required": some}, {"required": some[::-1] + ["z"]}]})
        self.bounded_schema({"properties": {name: {} for name in names}, "required": names,
                             "additionalProperties": True})
        self.bounded_schema({"allOf": [{"properties": {n: {"type": "integer"} for n in names}},
                                       {"properties": {n: {"minimum": 1} for n in names}}]})
        self.bounded_schema({"properties": {"x" * 100_000: {}}, "additionalProperties": {}})
        self.bounded_schema({"properties": {"p" * 1_000_000: {"properties": {n: {} for n in names}}}})
        self.bounded_schema({"type": ["null"] * 100_000})
        self.bounded_schema({"$ref": "#/" + "x" * 1_000_000})
        self.bounded_schema({"x" * 1_000_000: 1})
        self.bounded_schema({"const": "x" * 1_000_000})

    def test_counts_and_patterns(self):
        self.bounded_schema({"minLength": 199_000})
        self.refused({"properties": {f"a{i}": {"type": "string", "minLength": 150_000 + i} for i in range(3)}},
                     "200000 states")
        self.bounded_schema({"items": {"minItems": 1000, "items": {"minItems": 1000}}, "minItems": 1000})
        for pattern in ("(a{1,100}){1,100}", "((a{999}){999}){999}", "(((a*)*)*)*b", "(a|a|aa)*$" * 20,
                        "[^a]" * 15_000, "(" * 99 + "a" + ")" * 99, "(x+x+)+y", "^" + "(a|b|ab)*" * 100 + "$",
                        "[a-z]{10000}", "\\w{1,9999}" * 9):
            self.bounded_schema({"pattern": pattern})
        self.bounded_schema({"pattern": "(a|b)*", "minLength": 10_000, "maxLength": 20_000})
        # Every second character, in descending order: as many ranges as characters.
        large = "".join(map(chr, range(0xd000, 0x100, -2)))
        for pattern in (f"[{large}]", f"[^{large}]", f"[{large}]" * 8, f"([{large}])" + "{100}",
                        "|".join(f"[{large[:2000]}{i}]" for i in range(40))):
            self.bounded_schema({"pattern": pattern})
            self.bounded("/v1/completions", {"prompt": "x", "max_tokens": 2, "guided_regex": pattern})

    def test_tools(self):
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1,
                "tool_choice": "required"}
        self.bounded("/v1/chat/completions", {**body, "tools": [tool(f"f{i}") for i in range(30_000)]})
        self.bounded("/v1/chat/completions", {**body, "tools": [
            tool(f"f{i}", {"properties": {"a": {"type": "string"}}}) for i in range(100)]})

    # Patterns of which nearly every text is a place of its own, or has many readings.
    PATTERNS = ("([ab]*a[ab]{12}[^x]{0,5000})+", "([^q]*[aeiou][^q]{40}q?){9}", "(.*a.{20}){5}", "(.{0,90}x?){90}",
                "(((a?b?)*c?)*.{0,99})*z", "(\\w+\\s?){1,400}", "[^a]{9999}")

    def test_forms(self):
        body = {"prompt": "x", "max_tokens": 2, "temperature": 1}
        for pattern in self.PATTERNS:
            self.bounded("/v1/completions", {**body, "guided_regex": pattern})
        words = [f"{i} word {i * i}" for i in range(20_000)]
        self.bounded("/v1/completions", {**body, "guided_choice": words})
        self.bounded("/v1/completions", {**body, "guided_choice": ["x" * 900_000, "x" * 900_000 + "y"]})
        chain = "".join(f"r{i} ::= r{i + 1}? r{i + 1}?\n" for i in range(2000)) + 'r2000 ::= "a"\n'
        for grammar in ("root ::= r0\n" + chain,
                        'root ::= (a | b)* "z"\na ::= ("x" | "xx" | b)\nb ::= "x" a? | "y"',
                        'root ::= "(" root ")" | root2\nroot2 ::= "[" root "]" root2 | [^x]*',
                        "root ::= " + "(" * 99 + '"a"' + "?)*" * 99,
                        'root ::= [a-z]{10000} | "a"{9999} root',
                        'root ::= (("a"{999}){999}){999}',
                        "root ::= " + " | ".join(f'"{i}" root' for i in range(20_000)),
                        "root ::= [" + "a-z" * 100_000 + "]*"):
            self.bounded("/v1/completions", {**body, "grammar": grammar})

    def test_others_go_on_beside_hostile_forms(self):
        """Masks are computed in pieces, for a share of the time."""
        stop = threading.Event()

        def ask(pattern):
            while not stop.is_set():
                self.victim.post("/v1/completions", {"prompt": "x", "max_tokens": 20, "temperature": 1,
                                                     "ignore_eos": True, "guided_regex": pattern})

        threads = [threading.Thread(target=ask, args=(pattern,)) for pattern in self.PATTERNS * 2]
        for thread in threads:
            thread.start()
        try:
            self.assertTrue(victim.wait_for(lambda: self.victim.call("/stats")["requests"]["running"] > 5))
            before = self.victim.cpu()
            self.victim.post("/v1/completions", {"prompt": "y", "max_tokens": 100, "ignore_eos": True},
                             timeout=120 + 2 * victim.CPU_SECONDS)
            used = self.victim.cpu() - before
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        print(f"100 tokens beside hostile patterns: {used:.2f} s of processor time")
        self.assertLess(used, 2 * victim.CPU_SECONDS)

    def test_random_forms(self):
        def pattern(chance, depth):
            if depth == 0 or chance.random() < 0.2:
                return chance.choice(("a", "[^b]", ".", "\\w", "\\s", "[a-f]", "xy", "0", "é", "\\n"))
            what = chance.random()
            if what < 0.4:
                return "".join(pattern(chance, depth - 1) for _ in range(chance.randrange(1, 5)))
            if what < 0.6:
                return "(" + "|".join(pattern(chance, depth - 1) for _ in range(chance.randrange(1, 5))) + ")"
            return "(" + pattern(chance, depth - 1) + ")" + chance.choice(
                ("*", "+", "?", "{3}", "{0,40}", "{2,}", f"{{{chance.randrange(900)}}}"))

        def grammar(chance, depth, rules):
            if depth == 0 or chance.random() < 0.2:
                return chance.choice(('"a"', "[^b]", ".", "[a-f]", '"x\\n"', f"r{chance.randrange(rules)}", "[0-9]"))
            parts = [grammar(chance, depth - 1, rules) for _ in range(chance.randrange(1, 4))]
            return "(" + chance.choice((" ", " | ")).join(parts) + ")" + chance.choice(
                ("", "", "*", "+", "?", "{2,5}", f"{{0,{chance.randrange(900)}}}"))

        def attempt(chance):
            rules = chance.randrange(1, 5)
            kind = chance.choice(("guided_regex", "grammar", "guided_choice"))
            text = pattern(chance, 5) if kind == "guided_regex" else "root ::= r0\n" + "\n".join(
                f"r{i} ::= {grammar(chance, 4, rules)}" for i in range(rules))
            if chance.random() < 0.4:
                text = mutants.damaged(chance, text.encode()).decode(errors="replace")
            value = [text, text[:9], text + "x"] if kind == "guided_choice" else text
            return self.send("/v1/completions", json.dumps(
                {"prompt": "x", "max_tokens": 3, "temperature": 1, kind: value}).encode())

        self.campaign("patterns, GBNF and choices", 150, attempt)

    def test_random_schemas(self):
        def make(chance, depth):
            if depth == 0 or chance.random() < 0.2:
                return chance.choice(({"type": "integer"}, {"const": 1}, {"enum": [1, "a", None]}, True,
                                      False, {"$ref": "#"}, ref("a"), ref("b"), {"pattern": "a+"},
                                      {"type": "string", "maxLength": 5}))
            schema = {}
            for _ in range(chance.randrange(1, 4)):
                keyword = chance.choice(("allOf", "anyOf", "oneOf", "properties", "items", "prefixItems",
                                         "additionalProperties", "$ref", "required", "minItems"))
                if keyword in ("allOf", "anyOf", "oneOf", "prefixItems"):
                    schema[keyword] = [make(chance, depth - 1) for _ in range(chance.randrange(1, 5))]
                elif keyword == "properties":
                    schema[keyword] = {chance.choice("abcd"): make(chance, depth - 1)
                                       for _ in range(chance.randrange(1, 4))}
                elif keyword == "required":
                    schema[keyword] = ["a"]
                elif keyword == "$ref":
                    schema[keyword] = chance.choice(("#", "#/$defs/a", "#/$defs/b"))
                elif keyword == "minItems":
                    schema[keyword] = chance.randrange(9)
                else:
                    schema[keyword] = make(chance, depth - 1)
            return schema

        def attempt(chance):
            schema = {"$defs": {"a": make(chance, 3), "b": make(chance, 3)}, "allOf": [make(chance, 4)]}
            if chance.random() < 0.3:
                schema = mutants.replaced(chance, schema)
            return self.send("/v1/completions", json.dumps(ask(schema)).encode())

        self.campaign("random schemas", 150, attempt)


if __name__ == "__main__":
    victim.main()
