"""Prints python/litecache_llm/_options.py: the types of the options, from the engine's own table.

    LITECACHE_LIBRARY=build/release/liblitecache.so PYTHONPATH=python python3 python/make_options.py > python/litecache_llm/_options.py
"""
import litecache_llm

TYPES = {"DIR": "Union[str, os.PathLike[str]]", "FILE": "Union[str, os.PathLike[str]]", "NAME": "str", "TYPE": "str"}


def rows(kv_only):
    for option in litecache_llm.options(kv_only):
        name = option["flag"].lstrip("-").replace("-", "_")
        kind = "bool" if option["values"] == "on, off" else TYPES.get(option["type"], "Union[str, int, float]")
        yield f"    {name}: {kind}"


def main():
    print('"""The options of the engine and of the KV cache; made by python/make_options.py."""')
    print("from __future__ import annotations\n\nimport os\nfrom typing import TypedDict, Union\n\n")
    kv = list(rows(True))
    print("class KvOptions(TypedDict, total=False):")
    print('    """Options of the KV cache; litecache_llm.options(kv_only=True) describes them."""\n')
    print("\n".join(kv))
    print("\n\nclass Options(KvOptions, total=False):")
    print('    """Options of the engine; litecache_llm.options() describes them."""\n')
    print("\n".join(row for row in rows(False) if row not in kv))


if __name__ == "__main__":
    main()
