#!/usr/bin/env python3
"""Collects long texts of Debian packages and cuts them into rows of tokens for train.py.

    texts.py MODEL.gguf OUTPUT.npy [--length 32768] [--rows 640] [--held-out FOLDER]

Novels, essays, manuals, documentation and source code, each text as long as it can be: chapters of a book, pages of a manual and
files of a folder stay together, in order. OUTPUT holds [rows, length + 1] token ids (uint16), in random order; --held-out gets texts
that are in none of them. Packages are downloaded with apt-get and unpacked, not installed.
"""
import argparse
import gzip
import html
import lzma
import pathlib
import random
import re
import struct
import subprocess
import sys
import zlib

import numpy as np

from directory import open_source

PACKAGES = ["r-cran-janeaustenr", "anarchism", "debian-handbook", "bible-kjv", "bible-kjv-text", "jargon-text", "perl-doc",
            "python3.11-doc", "git-doc", "linux-doc-6.1", "rust-doc", "linux-source-6.1", "golang-1.19-src"]
# Rows by kind of text, in parts of all.
SHARES = {"prose": 4, "manuals": 7, "code": 7}
# These measure; they are in no row.
HELD_OUT = {"persuasion", "git", "fs/xfs"}


def unpack(folder: pathlib.Path):
    """Downloads and unpacks the packages that the folder lacks."""
    for package in PACKAGES:
        if not (folder / package).is_dir():
            subprocess.run(["apt-get", "download", "-qq", package], cwd=folder, check=True, stderr=subprocess.DEVNULL)
            (file,) = folder.glob(f"{package}_*.deb")
            subprocess.run(["dpkg", "-x", file, folder / package], check=True)
            file.unlink()
    kernel = folder / "linux"
    if not kernel.is_dir():
        kernel.mkdir()
        (archive,) = (folder / "linux-source-6.1").rglob("*.tar.xz")
        subprocess.run(["tar", "-xJf", archive, "-C", kernel, "--strip-components=1"], check=True)


def read(path: pathlib.Path) -> str:
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8", "replace")


def from_html(text: str) -> str:
    """The text of a page: without head, scripts and tags; runs of empty lines become one."""
    text = re.sub(r"(?is)<(head|script|style|nav)\b.*?</\1>|<!--.*?-->", "", text)
    text = re.sub(r"(?i)<(p|div|br|h\d|li|tr|pre|dt|dd)\b[^>]*>", "\n", text)
    text = html.unescape(re.sub(r"<[^>]+>", "", text))
    return re.sub(r"\n\s*\n+", "\n\n", "\n".join(line.rstrip() for line in text.split("\n"))).strip() + "\n\n"


def novels(folder: pathlib.Path) -> dict[str, str]:
    """Jane Austen's novels by name, from R's serialized vectors of lines (an element: flags, length, bytes)."""
    found = {}
    data = next(folder.rglob("data/Rdata.rdb")).read_bytes()
    at = 0
    while at + 5 < len(data):
        # An object: its length unpacked (4 bytes) and the packed data; where it ends is known once it is unpacked.
        unpacker = None
        for skip, make in ((5, lzma.LZMADecompressor), (4, zlib.decompressobj)):
            try:
                unpacker = make()
                content = unpacker.decompress(data[at + skip:])
                break
            except (lzma.LZMAError, zlib.error):
                unpacker = None
        if unpacker is None:
            at += 1
            continue
        at = len(data) - len(unpacker.unused_data)
        lines = []
        for match in re.finditer(rb"\x00\x04\x00\x09(....)", content, re.S):
            length = struct.unpack(">i", match[1])[0]
            if 0 <= length < 200:
                lines.append(content[match.end():match.end() + length].decode("utf-8", "replace"))
        title = next((line for line in lines if line.strip()), "")
        if len(lines) > 1000:
            found[title.strip().lower()] = "\n".join(lines) + "\n"
    return found


def joined(files, convert=lambda text: text, named=False) -> str:
    parts = []
    for path in files:
        text = convert(read(path))
        parts.append(f"// {path.name}\n{text}\n" if named else text)
    return "".join(parts)


def is_table(text: str) -> bool:
    """Tables that are written as code teach nothing."""
    return sum(map(str.isdigit, text)) > 0.12 * len(text)


def by_folder(root: pathlib.Path, pattern: str, **how) -> dict[str, str]:
    """One text for each folder below root: its files in order of names."""
    folders = {}
    for path in sorted(root.rglob(pattern)):
        if path.is_file() and path.stat().st_size < 400_000 and not is_table(read(path)):
            folders.setdefault(str(path.parent.relative_to(root)), []).append(path)
    return {name: joined(files, **how) for name, files in folders.items()}


def natural(path: pathlib.Path):
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]


def collect(folder: pathlib.Path) -> dict[str, dict[str, str]]:
    """Texts by kind and name."""
    prose = novels(folder / "r-cran-janeaustenr")
    prose["anarchism"] = joined(sorted((folder / "anarchism").rglob("sec*.html"), key=natural), from_html)
    prose["jargon"] = read(next((folder / "jargon-text").rglob("jargon.txt.gz")))
    bible = next(path for path in (folder / "bible-kjv").rglob("bible") if path.parent.name in ("bin", "games"))
    data = next((folder / "bible-kjv-text").rglob("bible.data"))
    prose["bible"] = subprocess.run([bible, "-f", "-p", data.parent, "gen1:1-rev22:21"], capture_output=True, text=True).stdout
    manuals = {"handbook": joined(sorted((folder / "debian-handbook").rglob("html/en-US/*.html")), from_html)}
    for name in ("book", "reference", "nomicon", "rustc", "cargo"):
        manuals[f"rust {name}"] = joined(sorted((folder / "rust-doc").rglob(f"html/{name}/**/*.html")), from_html)
    for name, text in by_folder(next((folder / "python3.11-doc").rglob("_sources")), "*.rst.txt").items():
        manuals[f"python {name}"] = text
    for path in sorted((folder / "perl-doc").rglob("*.pod")):
        manuals[f"perl {path.stem}"] = read(path)
    manuals["git"] = joined(sorted((folder / "git-doc").rglob("*.txt")))
    for name, text in by_folder(next((folder / "linux-doc-6.1").rglob("_sources")), "*.rst*").items():
        manuals[f"linux {name}"] = text
    kernel, code = folder / "linux", {}
    for part in ("kernel", "mm", "fs", "net", "block", "lib", "crypto", "security", "init", "ipc", "virt"):
        for name, text in by_folder(kernel / part, "*.c", named=True).items():
            code[f"{part}/{name}".removesuffix("/.")] = text
    for name, text in by_folder(folder / "golang-1.19-src", "*.go", named=True).items():
        code[f"go {name}"] = text
    return {"prose": prose, "manuals": manuals, "code": code}


def rows_of(texts: list[list[int]], length: int, end: int) -> list[np.ndarray]:
    """Rows of length + 1 ids: long texts are cut, what is left of them and short ones follow each other with `end` between."""
    rows, rest = [], []
    for ids in texts:
        whole = len(ids) // (length + 1)
        rows += [np.array(ids[i * (length + 1):(i + 1) * (length + 1)], np.uint16) for i in range(whole)]
        rest += ids[whole * (length + 1):] + [end]
    whole = len(rest) // (length + 1)
    return rows + [np.array(rest[i * (length + 1):(i + 1) * (length + 1)], np.uint16) for i in range(whole)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--packages", type=pathlib.Path, default="packages", help="folder to unpack Debian packages in")
    parser.add_argument("--held-out", type=pathlib.Path, help="folder for the texts that measure")
    parser.add_argument("--length", type=int, default=32768)
    parser.add_argument("--rows", type=int, default=640)
    arguments = parser.parse_args()
    arguments.packages.mkdir(parents=True, exist_ok=True)
    unpack(arguments.packages)
    source = open_source(arguments.model)
    tokenizer, end = source.tokenizer(), source.config()["eos_token_id"]
    order = random.Random(1)
    chosen = []
    for kind, texts in collect(arguments.packages).items():
        for name in HELD_OUT & texts.keys():
            if arguments.held_out:
                arguments.held_out.mkdir(parents=True, exist_ok=True)
                (arguments.held_out / f"{name.replace('/', '-')}.txt").write_text(texts[name], encoding="utf-8")
            del texts[name]
        wanted = arguments.rows * SHARES[kind] // sum(SHARES.values())
        names = sorted(texts)
        order.shuffle(names)
        # More than enough characters for the rows of this kind.
        enough, kept = 8 * wanted * arguments.length, []
        for name in names:
            if enough > 0 and texts[name]:
                kept.append(texts[name])
                enough -= len(texts[name])
        rows = rows_of([one.ids for one in tokenizer.encode_batch(kept)], arguments.length, end)
        order.shuffle(rows)
        print(f"{kind}: {len(texts)} texts, {len(rows)} rows, of which {min(wanted, len(rows))} are taken", file=sys.stderr)
        chosen += rows[:wanted]
    order.shuffle(chosen)
    np.save(arguments.output, np.stack(chosen))
    print(f"{arguments.output}: {len(chosen)} rows of {arguments.length + 1} tokens")


if __name__ == "__main__":
    main()
