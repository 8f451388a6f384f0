"""Everything that a documentation page refers to must exist: files (links, and paths in backquotes), and the headings that links
lead to. So must the files named in comments of C++ sources; and the environment variables that the program reads must be on the
program's page.

A path is looked up from the root, from the page's folder, and as the end of any file's path (`kv/cache.h`, `cache.h`); `*` matches
within a name. Only names that look like files of the project are checked: those with a source file's extension that are not in an
unknown folder, and those that begin with a folder of the root and a slash.
"""
import fnmatch
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SKIPPED = {".git", "build"}
ENDINGS = (".h", ".cc", ".cu", ".cuh", ".py", ".md", ".sh", ".cmake", ".html", ".js", ".css", "CMakeLists.txt")
# Text that `litecache-lab papers` inserts into the page on the right: its links belong to that page.
INCLUDED = {"lab/notes/papers/notes.md": "lab/notes/papers.md"}
LINK = re.compile(r"\]\(([^)\s]+)\)")
QUOTED = re.compile(r"`([\w./*-]+)`")
COMMENT = re.compile(r"//(.*)$", re.MULTILINE)
NAMED = re.compile(r"[\w./*-]*\w\.(?:h|cc|cuh?|md|py|sh)\b")
VARIABLE = re.compile(r'getenv\("(LITECACHE_\w+)"')
LINK_TEXT = re.compile(r"\[([^\]]*)\]\([^)]*\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
FENCE = re.compile(r"^\s*```.*?^\s*```", re.MULTILINE | re.DOTALL)


def project_files():
    for entry in sorted(ROOT.iterdir()):
        if entry.name in SKIPPED:
            continue
        if entry.is_dir():
            yield from (p.relative_to(ROOT).as_posix() for p in entry.rglob("*") if p.is_file())
        else:
            yield entry.name


FILES = sorted(project_files())
FOLDERS = {parent.as_posix() for f in FILES for parent in Path(f).parents} - {"."}
TOP = {f.split("/")[0] for f in FILES if "/" in f}
ENDS = {f[i:] for f in FILES for i in [0, *(m.end() for m in re.finditer("/", f))]}
NAMES = {name for f in FOLDERS if f.startswith(("src/", "include/", "tools/")) for name in f.split("/")}
FOLDER_ENDS = {f[i:] for f in FOLDERS for i in [0, *(m.end() for m in re.finditer("/", f))]}


def exists(path):
    path = path.rstrip("/")
    if "*" in path:
        return any(fnmatch.fnmatch(end, path) and end.count("/") == path.count("/") for end in ENDS)
    return path in ENDS or path in FOLDER_ENDS


def quoted_paths(text):
    for match in QUOTED.finditer(FENCE.sub("", text)):
        path = match[1]
        first = path.split("/")[0]
        ours = "/" not in path or first in {"..", "*", *NAMES}
        if first in TOP or ours and path.endswith(ENDINGS) and not path.startswith("."):
            yield path.removeprefix("../")


def links(page, text):
    """(file, heading): the heading is empty if the link has none."""
    here = ROOT / INCLUDED.get(page, page)
    for match in LINK.finditer(FENCE.sub("", text)):
        target, _, heading = match[1].partition("#")
        if not re.match(r"[a-z]+:", match[1]):
            yield (here.parent / target if target else here), heading


def headings(path):
    """The anchor of a heading as GitHub forms it."""
    for match in HEADING.finditer(FENCE.sub("", path.read_text(encoding="utf-8"))):
        text = LINK_TEXT.sub(r"\1", match[1]).strip().lower()
        yield re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def named_in_comments(text):
    for comment in COMMENT.finditer(text):
        for match in NAMED.finditer(comment[1]):
            yield match[0].removeprefix("./").removeprefix("../")


def main():
    pages = [f for f in FILES if f.endswith(".md")]
    broken, seen = [], 0
    for page in pages:
        text = (ROOT / page).read_text(encoding="utf-8")
        for path in quoted_paths(text):
            seen += 1
            if not exists(path):
                broken.append(f"{page}: `{path}` is no file of the project")
        for path, heading in links(page, text):
            seen += 1
            if not path.exists():
                broken.append(f"{page}: the link to {path.resolve().relative_to(ROOT)} leads nowhere")
            elif heading and heading not in headings(path):
                broken.append(f"{page}: {path.resolve().relative_to(ROOT)} has no heading #{heading}")
    told = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")
    for source in (f for f in FILES if f.endswith((".h", ".cc", ".cu", ".cuh"))):
        text = (ROOT / source).read_text(encoding="utf-8")
        if source.startswith("src/"):
            broken += [f"docs/reference/cli.md: {name} of {source} is missing" for name in VARIABLE.findall(text) if name not in told]
        for path in named_in_comments(text):
            seen += 1
            if not exists(path):
                broken.append(f"{source}: a comment names {path}, which is no file of the project")
    print("\n".join(broken) or f"{seen} paths in {len(pages)} pages")
    # A search that finds nothing would report no errors either.
    return 1 if broken or seen < 100 else 0


if __name__ == "__main__":
    sys.exit(main())
