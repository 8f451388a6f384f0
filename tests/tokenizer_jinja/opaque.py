"""Detects whether a template's text depends on how Python prints objects without a text representation.

Methods that are not called, generators and iterators print as "<built-in method items of dict object at 0x7f...>", which no
template can use and no other program can print. If such a text is printed completely, its address shows it; if
it is measured, cut or compared (d['items'] | trim | length) nothing does. So the template is rendered with such objects
replaced by several different texts: if the results differ, they depend on it."""

import collections.abc
import functools
import types

import transformers.utils.chat_template_utils as utils

# The texts printed for a replaced object.
TEXTS = ["", "x", "<An object of another length, at 0x0123456789ABCDEF0123> "]
METHODS = (types.MethodType, types.BuiltinMethodType, types.FunctionType, types.MethodWrapperType)


class Disguise:
    def __init__(self, value, text):
        self.value = value
        self.text = text

    def __repr__(self):
        return self.text

    def __eq__(self, other):
        return self.value == (other.value if isinstance(other, Disguise) else other)

    def __hash__(self):
        return hash(self.value)


class Method(Disguise):
    def __call__(self, *args, **kwargs):
        return self.value(*args, **kwargs)


class Iterator(Disguise):
    def __iter__(self):
        return self

    def __next__(self):
        return next(self.value)


def disguised(value, text):
    if isinstance(value, METHODS):
        return Method(value, text)
    if isinstance(value, collections.abc.Iterator) and " at 0x" in repr(value):
        return Iterator(value, text)
    return value


def environment(text):
    """The environment of Transformers, in which every such object prints as the text."""
    # Transformers caches one environment per template.
    result = utils._compile_jinja_template("{# " + text + " #}").environment
    plain = type(result)

    class Environment(plain):
        def getattr(self, obj, attribute):
            return disguised(super().getattr(obj, attribute), text)

        def getitem(self, obj, argument):
            return disguised(super().getitem(obj, argument), text)

    def disguising(function):
        return functools.wraps(function)(lambda *args, **kwargs: disguised(function(*args, **kwargs), text))

    result.__class__ = Environment
    result.filters = {name: disguising(function) for name, function in result.filters.items()}
    return result


@functools.cache
def environments():
    return [environment(text) for text in TEXTS]


def matters(template, context):
    """Whether the template's output depends on the text of such an object."""
    results = set()
    for each in environments():
        try:
            results.add(each.from_string(template).render(**context))
        except Exception:  # noqa: BLE001 - that it fails is the result
            results.add(None)
    return len(results) > 1
