"""Collects permissively licensed Python sources as long documents, one per folder.

A document consists of a folder's files, in name order, each preceded by its path. Packages are selected by the
licence in their own metadata; those without one, or with one outside ALLOWED, are left out.
"""

import argparse
import hashlib
import importlib.metadata
import json
import pathlib
import re
import sys
import sysconfig

ALLOWED = re.compile(r"\b(MIT|BSD|Apache|ISC|PSF|Python Software Foundation|HPND|0BSD|Zlib)\b", re.I)
REFUSED = re.compile(r"\b(A?L?GPL|GNU|MPL|Mozilla|EPL|CDDL|proprietary|NVIDIA)", re.I)
# Packages excluded from training: their sources measure perplexity.
HELD_OUT = {"networkx", "aiohttp", "werkzeug", "joblib", "patsy"}
# Standard library modules from which the retrieval generator's test haystack is made.
HELD_OUT_STDLIB = {
    "argparse", "difflib", "ipaddress", "configparser", "tarfile", "statistics",
    "fractions", "textwrap", "heapq", "csv", "shlex", "calendar",
}
# A near copy of another collected package, and one with much third-party code under other licences.
LEFT_OUT = {"pytorch-lightning", "pip"}
MAX_FILE = 400_000
MIN_FILE = 200


def licence_of(dist) -> str:
    """The licence in the package's metadata: expression, classifiers, else the field's first line."""
    meta = dist.metadata
    found = [meta.get("License-Expression") or ""]
    found += [c.split("::")[-1].strip() for c in meta.get_all("Classifier") or [] if c.startswith("License ::")]
    if not "".join(found).strip():
        found.append((meta.get("License") or "").strip().split("\n")[0][:80])
    return "; ".join(f for f in found if f)


def read_source(path: pathlib.Path) -> str | None:
    """The text of one source file, or None if it is useless: too small, huge, data, not UTF-8."""
    try:
        if not MIN_FILE <= path.stat().st_size <= MAX_FILE:
            return None
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    lines = text.split("\n")
    # Tables written as code teach nothing: they have long lines, or hardly any letters.
    if max(map(len, lines)) > 1000 or len(text) / len(lines) > 100:
        return None
    if sum(map(str.isdigit, text)) > 0.2 * len(text):
        return None
    return text


def folder_documents(files, root, seen) -> list[str]:
    """Joins the files of each folder; files already seen elsewhere (by content) are left out."""
    folders: dict[pathlib.Path, list[str]] = {}
    for path in sorted(files):
        text = read_source(path)
        if text is None:
            continue
        digest = hashlib.sha1(text.encode()).digest()
        if digest in seen:
            continue
        seen.add(digest)
        folders.setdefault(path.parent, []).append(f"# {path.relative_to(root)}\n{text.rstrip()}\n\n")
    return ["".join(parts) for _, parts in sorted(folders.items())]


def stdlib_files(held_out: bool):
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).parts
        if parts[0] in ("site-packages", "dist-packages", "idlelib", "lib2to3"):
            continue
        name = path.stem
        held = any(name in (m, f"test_{m}") for m in HELD_OUT_STDLIB) or parts[0] in HELD_OUT_STDLIB
        if held == held_out:
            yield path


def collect():
    """(train documents, held-out documents by package, list of packages with licences)."""
    train, held, packages, seen = [], {}, [], set()
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    documents = folder_documents(stdlib_files(False), root, seen)
    train += documents
    packages.append({"name": "Python standard library", "version": sys.version.split()[0],
                     "licence": "PSF-2.0", "use": "train", "characters": sum(map(len, documents))})
    for dist in sorted(importlib.metadata.distributions(), key=lambda d: d.metadata["Name"].lower()):
        name = dist.metadata["Name"].lower().replace("_", "-")
        licence = licence_of(dist)
        if name in LEFT_OUT or not ALLOWED.search(licence) or REFUSED.search(licence):
            continue
        site = pathlib.Path(dist.locate_file(""))
        files = [pathlib.Path(dist.locate_file(f)) for f in dist.files or [] if str(f).endswith(".py")]
        files = [f for f in files if site in f.parents]
        documents = folder_documents(files, site, seen)
        if not documents:
            continue
        use = "held out" if name in HELD_OUT else "train"
        packages.append({"name": name, "version": dist.version, "licence": licence, "use": use,
                         "characters": sum(map(len, documents))})
        if use == "train":
            train += documents
        else:
            held[name] = documents
    return train, held, packages


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", required=True, type=pathlib.Path)
    args = parser.parse_args()
    train, held, packages = collect()
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "train.json").write_text(json.dumps(train))
    (args.output / "held_out.json").write_text(json.dumps(held))
    (args.output / "packages.json").write_text(json.dumps(packages, indent=1))
    total = sum(p["characters"] for p in packages if p["use"] == "train")
    print(f"{len(train)} training documents, {total / 1e6:.1f}M characters, {len(packages)} packages")


if __name__ == "__main__":
    main()
