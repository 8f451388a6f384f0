"""Hooks of the documentation's site (mkdocs.yml): pages made from the Python package's docstrings and from the public headers, and links
to files that are not part of the site."""
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PYTHON = ["LLM", "Stream", "SamplingParams", "RequestOutput", "CompletionOutput", "ChatOutput", "StreamChunk", "KvCache", "KvPart", "options",
          "transformers.LiteCache", "LiteCacheError", "InvalidArgument", "FileError", "Unsupported", "CapacityError"]
HEADERS = ["engine.h", "kv_cache.h", "kv_options.h", "kv_stats.h", "options.h", "token_constraint.h", "litecache.h"]
LINK = re.compile(r"\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")


def python_page():
    entries = "\n\n".join(f"::: litecache_llm.{name}" for name in PYTHON)
    return f"# Python\n\nThe package `litecache_llm`; the [guide](../guides/python.md) introduces it.\n\n{entries}\n"


def headers_page():
    parts = ["# C and C++\n\nThe public headers; `litecache.h` is that for C."]
    for name in HEADERS:
        text = (ROOT / "include/litecache" / name).read_text(encoding="utf-8")
        parts.append(f"## litecache/{name}\n\n```cpp\n{text}```")
    return "\n\n".join(parts) + "\n"


def on_files(files, config):
    files.append(File.generated(config, "reference/python-api.md", content=python_page()))
    files.append(File.generated(config, "reference/headers.md", content=headers_page()))
    return files


def on_page_markdown(markdown, page, **_):
    """A link to a file of the repository that is not in the site becomes its text."""
    here = (DOCS / page.file.src_uri).parent

    def replace(match):
        target = (here / match[2].split("#")[0]).resolve()
        return match[0] if target.suffix == ".md" and target.is_relative_to(DOCS) else match[1]
    return LINK.sub(replace, markdown)
