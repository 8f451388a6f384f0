"""Valid bodies, files and templates with parts replaced: what the random attacks of this folder send."""

import json

VALUES = [None, True, -1, 0, 1e308, 2**63, 2**64, "", "x", "\u0000", "\ud800", "<|im_end|>", [], {}, [[]],
          {"$ref": "#"}, {"allOf": [{"$ref": "#"}]}, {"type": "string", "pattern": "(a*)*"}, "[" * 200,
          ["x"] * 70, {"a": {"b": {}}}, "x" * 5000, -2**31, 1e-320, 4096.5, "../../etc/passwd", "a\nb\x1b[2J"]
PIECES = [b"[", b"]", b"{", b"}", b",", b":", b'"', b"\\", b"0", b"-", b"1e99", b"null", b"\xff", b"\x00",
          b"\\ud800", b'{"$ref":"#"}', b'"allOf":', b"18446744073709551616", b"\x7f\xff\xff\xff", b"\x80" * 8]
JINJA = [b"{{", b"}}", b"{%", b"%}", b"{#", b"{% for i in range(9) %}", b"{% endfor %}", b"{% set s = s ~ s %}",
         b"{% if x is defined %}", b"|tojson", b".split('')", b"[::-1]", b"namespace(a=1)", b"loop(", b"(" * 150,
         b"{% macro m(p) %}{{ m(p) }}{% endmacro %}{{ m(1) }}", b"* 999999999", b"'%9999999d' % 1", b"**", b"-"]


def replaced(chance, value):
    """The same value with one of its parts replaced, or doubled, or taken away."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(list(value))
        if chance.random() < 0.1:
            return {name: kept for name, kept in value.items() if name != key}
        return {**value, key: replaced(chance, value[key])}
    if isinstance(value, list) and value and chance.random() < 0.9:
        at = chance.randrange(len(value))
        if chance.random() < 0.1:
            return value + value[at:at + 1]
        return value[:at] + [replaced(chance, value[at])] + value[at + 1:]
    if chance.random() < 0.4:
        return chance.choice(VALUES)
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + chance.choice((-1, 1, 7, 1 << 16, 1 << 31)) if chance.random() < 0.5 else value * 0.5
    return chance.choice([other for other in VALUES if isinstance(other, type(value))])


def damaged(chance, data, pieces=PIECES, most=3):
    """The same bytes with some of them changed, cut out or doubled in up to `most` places."""
    data = bytearray(data)
    for _ in range(min(chance.randrange(most), chance.randrange(most)) + 1):
        at = chance.randrange(len(data) + 1)
        what = chance.random()
        if what < 0.2:
            data[at:at] = data[at:at + chance.randrange(40)]
        elif what < 0.3:
            data[at:at + 1] = bytes([chance.randrange(256)])
        elif what < 0.5:  # the same kind of character: the text stays well-formed
            data[at:at + 1] = bytes([chance.choice(b"0123456789")]) if data[at:at + 1].isdigit() else data[at:at + 1].swapcase()
        elif what < 0.55:
            del data[at:]
        else:
            data[at:at + chance.randrange(6)] = chance.choice(pieces)
    return bytes(data)


def replaced_json(chance, data, most=3):
    """JSON text with up to `most` of its parts replaced."""
    value = json.loads(data)
    for _ in range(chance.randrange(most) + 1):
        value = replaced(chance, value)
    return json.dumps(value).encode()
