"""Random small templates over the whole supported language, with random variables.

About half of the generated templates run; those that fail must fail in both renderers.

Templates never assign to the variables they are given: Jinja's compiler makes such a variable undefined in inner
scopes before the assignment, where this interpreter still finds the given value."""

import random

TEXTS = [
    "", " ", "a", "Hello", "  padded\t", "x,y,,z", "Straße", "ΌΔΟΣ", "日本 語", "e\u0301", "it's", 'say "hi"',
    "line1\nline2\n\n  line3", "<b>&</b>", "a-b (c) [d]", "%s and %d", "{} {0}", "1.5", "-42", " 7 ", "1e3", "nan",
    "ﬁn ǆ ŉ", "İi", "tab\tend", "\u2028sep\x85x", "trailing ", "AbC dEf", "0x1F", "1_000", "🙂🙃", "\u00a0nb\u3000",
    "Null\x00\x1f\x7f", "ß", "Ωmega ᾳ ᾼ", "null", "true",
]
NAMES = ["s", "t", "n", "f", "b", "z", "xs", "ys", "d", "rows", "undef", "ns", "i", "k", "v"]
KEYS = ["a", "b", "name", "items", "role", "x y", "0"]
STRING_METHODS = [
    "strip()", "lstrip()", "rstrip()", "strip('a ')", "rstrip('\\n')", "lstrip('aH')", "upper()", "lower()", "title()",
    "capitalize()", "swapcase()", "split()", "split(',')", "split(',', 1)", "rsplit(',', 1)", "split(None, 1)",
    "rsplit(None, 1)", "splitlines()", "splitlines(true)", "startswith('a')", "endswith(' ')", "startswith(('a', 'H'))",
    "startswith('e', 1)", "endswith('l', 0, -1)", "replace('l', 'L')", "replace('', '-')", "replace('a', '', 1)",
    "find('l')", "rfind('l')", "find('l', 2)", "find('', 9)", "count('l')", "count('')", "isdigit()", "isalpha()",
    "isalnum()", "isspace()", "isupper()", "islower()", "isnumeric()", "isdecimal()", "partition(',')",
    "rpartition(',')", "removeprefix('a')", "removesuffix('z')", "zfill(6)", "ljust(7)", "rjust(7, '.')",
    "join(['1', '2'])", "format(1, 'x')", "format(n, name=s)", "index('l')",
]  # fmt: skip
FILTERS = [
    "trim", "trim('aH ')", "upper", "lower", "title", "capitalize", "length", "count", "first", "last", "list", "string",
    "int", "int(7)", "int(0, 16)", "float", "float(2.5)", "abs", "round", "round(1)", "round(1, 'ceil')",
    "round(2, 'floor')", "round(-1)", "tojson", "tojson(indent=2)", "tojson(ensure_ascii=true)", "tojson(sort_keys=true)",
    "tojson(separators=(',', ':'))", "join", "join(', ')", "join('-', attribute='a')", "default('D')",
    "default('D', true)", "d", "reverse | list", "sort", "sort(reverse=true)", "sort(case_sensitive=true)",
    "sort(attribute='a')", "sort(attribute='a,name')", "unique | list", "min", "max", "sum", "sum(attribute='a')",
    "max(attribute='a')", "items | list", "dictsort", "dictsort(by='value')", "dictsort(reverse=true)",
    "map('upper') | list", "map(attribute='a') | list", "map(attribute='a', default=0) | list", "map('int') | list",
    "map('default', 'q') | join('/')", "select | list", "select('string') | list", "reject('none') | list",
    "select('equalto', 'a') | list", "selectattr('a') | list", "selectattr('a', 'gt', 1) | list", "select('odd') | list",
    "rejectattr('name', 'defined') | list", "batch(2) | list", "batch(3, '-') | list", "slice(2) | list",
    "slice(3, 'f') | map('list') | list", "replace('l', 'LL')", "replace('a', 'b', 1)", "indent", "indent(2, true)",
    "indent('> ', first=true, blank=true)", "center(11)", "truncate(8)", "truncate(9, true, '..')", "wordcount",
    "format('x', 3)", "escape", "e", "safe", "forceescape", "attr('a')", "safe | trim", "select('in', ['a', 'b', 1]) | list",
]  # fmt: skip
TESTS = [
    "defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "true", "false", "mapping",
    "iterable", "sequence", "callable", "odd", "even", "divisibleby 3", "divisibleby(2)", "lower", "upper", "in ['a', 1]",
    "in xs", "eq 1", "equalto('a')", "ne none", "gt 1", "lt(2)", "ge 1.0", "le 3", "sameas true", "sameas none", "escaped",
    "filter", "test",
]  # fmt: skip
OPERATORS = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or", "**"]
LITERALS = [
    "0", "1", "2", "-1", "3.5", "1e2", "0.1", "1_0", "true", "false", "none", "True", "None", "'a'", '"it\'s"', "''",
    "'\\n'", "'é\\u00e9\\x41'", "[]", "{}", "[1, 2, 3]", "('a', 'b')", "(1,)", "()", "{'a': 1, 'b': [2]}", "[none, 'x', 1.0]",
    "range(3)", "range(1, 10, 4)", "range(5, 0, -2)", "dict(a=1, b='2')", "[3, 1, 2]", "['b', 'A', 'c']", "'a' 'b'",
    "'l'", "namespace(a=1)", "1000000.0", "1e16", "1e-5", "123456789.123456789",
]  # fmt: skip


class Generator:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.loops = 0

    def pick(self, items):
        return self.random.choice(items)

    def chance(self, p):
        return self.random.random() < p

    # Variables.

    def scalar(self):
        r = self.random
        return r.choice(
            [
                lambda: r.choice(TEXTS),
                lambda: r.randint(-20, 20),
                lambda: r.choice([0.0, -0.0, 0.5, 1.5, 2.5, -3.25, 1e20, 1e-7, 100.0, 0.1 + 0.2, 1234.5678]),
                lambda: r.choice([True, False, None]),
            ]
        )()

    def record(self):
        return {key: self.scalar() for key in self.random.sample(KEYS, self.random.randint(0, 4))}

    def context(self):
        r = self.random
        kind = r.choice([lambda: r.choice(TEXTS), lambda: r.randint(-5, 5), self.scalar])
        return {
            "s": r.choice(TEXTS),
            "t": r.choice(TEXTS),
            "n": r.randint(-10, 30),
            "f": r.choice([0.0, 0.5, 2.5, -1.25, 3.0, 1e16, 12.345]),
            "b": r.choice([True, False]),
            "z": None,
            "xs": [kind() for _ in range(r.randint(0, 5))],
            "ys": [r.choice(TEXTS) for _ in range(r.randint(0, 4))],
            "d": self.record(),
            "rows": [{"a": r.randint(0, 4), "name": r.choice(TEXTS), **self.record()} for _ in range(r.randint(0, 4))],
        }

    # Expressions.

    def expression(self, depth=0):
        if depth > 2 or self.chance(0.3):
            return self.pick(NAMES) if self.chance(0.55) else self.pick(LITERALS)
        e = lambda: self.expression(depth + 1)  # noqa: E731
        choices = [
            lambda: f"{e()} {self.pick(OPERATORS)} {e()}",
            lambda: f"({e()} {self.pick(OPERATORS)} {e()})",
            lambda: f"not {e()}",
            lambda: f"-{self.pick(['n', 'f', '2', '(n + 1)', 's'])}",
            lambda: f"({e()}) | {self.pick(FILTERS)}",
            lambda: f"{self.pick(NAMES)} | {self.pick(FILTERS)}",
            lambda: f"{self.pick(NAMES)} | {self.pick(FILTERS)} | {self.pick(FILTERS)}",
            lambda: f"({e()}) is {self.pick(['', 'not '])}{self.pick(TESTS)}",
            lambda: f"{self.pick(['s', 't', 'ys[0]', 'd.name'])}.{self.pick(STRING_METHODS)}",
            lambda: f"{self.pick(NAMES)}{self.subscript(depth)}",
            lambda: f"({e()}){self.subscript(depth)}",
            lambda: f"({e()} if {e()} else {e()})",
            lambda: f"({e()} if {e()})",
            lambda: f"[{e()}, {e()}]",
            lambda: f"({e()}, {e()})",
            lambda: "{" + f"'k': {e()}, {self.pick(['n', 's', '1', repr('a')])}: {e()}" + "}",
            lambda: f"{self.pick(['d', 'rows[0]'])}.{self.pick(['get(%r)', 'get(%r, 5)']) % self.pick(KEYS)}",
            lambda: f"d.{self.pick(['items()', 'keys()', 'values()', 'copy()', 'update(a=1)', 'pop(1)'])}",
            lambda: f"({e()} < {e()} <= {e()})",
            lambda: f"({self.view()} {self.pick(['<', '<=', '>', '>=', '==', '!='])} {self.view()})",
            lambda: f"{self.pick([repr('%s|%5d|%-4s|%.2f'), repr('%r %s'), repr('%05.1f%%')])} % ({e()}, {e()})",
            lambda: f"'{self.pick(['{}', '{:>6}', '{!r}', '{:.1f}', '{0[0]}', '{:05d}', '{:,}'])}'.format({e()})",
            lambda: self.pick(["loop.index", "loop.index0", "loop.last", "loop.first", "loop.length", "loop.revindex"]),
            lambda: self.pick(["loop.previtem", "loop.nextitem", "loop.cycle('o', 'e')", "loop.changed(n)", "loop.depth"]),
            lambda: f"m({self.pick(['', 's', 'n, 2', 'p=t', 's, q=1', 's, 1, 2', 'r=1'])})",
        ]
        return self.pick(choices)()

    def view(self):
        return f"{self.pick(['d', 'rows[0]'])}.{self.pick(['keys()', 'items()', 'values()'])}"

    def subscript(self, depth):
        return self.pick(
            [
                lambda: f"[{self.pick(['0', '1', '-1', '5', 'n', '', '0, 1'])}]",
                lambda: f"[{self.pick([':2', '1:', '-2:', '::-1', '::2', '1:3', ':-1', 'n:', '3::-1', '::0', ':none'])}]",
                lambda: f"['{self.pick(KEYS)}']",
                lambda: f".{self.pick(['a', 'b', 'name', 'items', 'role', '0'])}",
                lambda: f"[{self.expression(depth + 1)}]",
            ]
        )()

    # Statements.

    def tag(self, body):
        return "{%" + self.pick(["", "-", "-", "+"]) + f" {body} " + self.pick(["", "-"]) + "%}"

    def text(self):
        return self.pick(["", "\n", "  ", "text", " a\n", "\n  ", "\n\n", "\t{ x }", "é ", "{# note #}", "{#- c -#} ", "\n {# c #}\n"])

    def output(self):
        return "{{" + self.pick(["", "-", "+"]) + f" {self.expression(self.pick([0, 1, 2, 2, 3]))} " + self.pick(["", "-"]) + "}}"

    def body(self, depth):
        return "".join(self.text() + self.statement(depth + 1) for _ in range(self.random.randint(1, 2))) + self.text()

    def loop(self, depth):
        target, source = self.pick(
            [("i", "xs"), ("i", "ys"), ("i", "range(3)"), ("k, v", "d.items()"), ("k, v", "d | items"), ("i", "rows"),
             ("i", "s"), ("i", "xs[::-1]"), ("k", "d"), ("i", "undef"), ("i", "rows | map(attribute='a')"),
             ("(k, v)", "[(1, 2), (3, 4)]"), ("i", f"({self.expression(2)})")]
        )  # fmt: skip
        test = self.pick(["", "", " if i", " if loop is undefined", " if i is string", " if f > 0"])
        self.loops += 1
        body = self.body(depth)
        self.loops -= 1
        otherwise = self.tag("else") + self.body(depth) if self.chance(0.2) else ""
        return self.tag(f"for {target} in {source}{test}") + body + otherwise + self.tag("endfor")

    def statement(self, depth=0):
        if depth > 2 or self.chance(0.4):
            return self.output()
        loops, self.loops = self.loops, 0
        isolated = self.pick(
            [
                lambda: self.tag("macro m(p, q='Q')") + self.body(depth) + self.pick(["", "{{ varargs }}", "{{ kwargs }}", "{{ caller() }}"])
                + self.tag("endmacro"),
                lambda: self.tag("call m(s)") + self.body(depth) + self.tag("endcall"),
                lambda: self.tag("generation") + self.body(depth) + self.tag("endgeneration"),
            ]
        )  # fmt: skip
        is_isolated = self.chance(0.2)
        if is_isolated:
            result = isolated()
        self.loops = loops
        if is_isolated:
            return result
        return self.pick(
            [
                lambda: self.loop(depth),
                lambda: self.loop(depth),
                lambda: self.tag(f"if {self.expression(2)}") + self.body(depth)
                + (self.tag(f"elif {self.expression(2)}") + self.body(depth) if self.chance(0.4) else "")
                + (self.tag("else") + self.body(depth) if self.chance(0.6) else "") + self.tag("endif"),
                lambda: self.tag(f"set {self.pick(['i', 'k', 'v', 'undef'])} = {self.expression(self.pick([1, 2, 3]))}"),
                lambda: self.tag(f"set {self.pick(['k, v', 'i, undef'])} = {self.expression(self.pick([1, 2, 3]))}, {self.expression()}"),
                lambda: self.tag("set ns = namespace(a=1, b=s)") + self.tag(f"set ns.a = {self.expression(self.pick([1, 2, 3]))}") + "{{ ns.a }}",
                lambda: self.tag(f"set ns.{self.pick(['a', 'c'])} = {self.expression(self.pick([1, 2, 3]))}"),
                lambda: self.tag("set k" + self.pick(["", " | upper", " | trim | length"])) + self.body(depth) + self.tag("endset") + "{{ k }}",
                lambda: self.tag("filter " + self.pick(["upper", "trim", "indent(3)", "replace('a', 'b') | lower", "tojson"]))
                + self.body(depth) + self.tag("endfilter"),
                lambda: self.tag(f"with i = {self.expression(self.pick([1, 2, 3]))}, k = n") + self.body(depth) + self.tag("endwith"),
                lambda: self.tag("raw") + self.pick(["{{ x }}", " {% y %}\n", "plain"]) + self.tag("endraw"),
                lambda: (self.tag(f"if {self.expression(2)}") + self.tag(self.pick(["break", "continue"])) + self.tag("endif"))
                if self.loops else self.output(),
                lambda: self.tag("for i in rows recursive") + "{{ i.a }}" + self.pick(["", "{% if loop.depth < 3 %}{{ loop(rows[1:]) }}{% endif %}"])
                + self.tag("endfor"),
                lambda: self.tag(f"print {self.expression()}"),
            ]
        )()  # fmt: skip

    def template(self):
        prefix = "{% macro m(p, q='Q') %}<{{ p }}|{{ q }}>{% endmacro %}" if self.chance(0.5) else ""
        return prefix + self.body(0)
