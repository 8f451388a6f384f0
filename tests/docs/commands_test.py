"""Commands on documentation pages must be valid: each must name a command of the program and use options from the tables of the reference
(docs/reference/cli.md). Commands of litecache-lab may also use options from its own page (lab/cli/README.md)."""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(p.relative_to(ROOT).as_posix() for p in ROOT.glob("docs/**/*.md")),
         "models/litecache-demo-16m/README.md", "scripts/demo"]
REFERENCE = "docs/reference/cli.md"
LAB = "lab/cli/README.md"
# A command on a separate line (indented, in a fence, after a prompt) or in backquotes.
LINE = re.compile(r"^[ \t$]*(?:[\w./|-]+ \| )?(?:\S*/)?(litecache|litecache-lab) (.*)$")
QUOTED = re.compile(r"`(?:\S*/)?(litecache|litecache-lab) ([^`]*)`")
OPTION = re.compile(r"(?<![\w-])(--?[a-zA-Z][\w-]*)")
TABLE = re.compile(r"^\| `(-[^`]*)`", re.MULTILINE)
COMMAND = re.compile(r"^## ([a-z, ]+)$", re.MULTILINE)
STRING = re.compile(r"'[^']*'|\"[^\"]*\"|#.*$")


def shown(text):
    """(line number, program, arguments); a backslash at the end of a line joins the next one."""
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        match = LINE.match(line)
        if match:
            arguments, at = match[2], number
            while arguments.endswith("\\") and at < len(lines):
                arguments, at = arguments[:-1] + lines[at], at + 1
            yield number, match[1], arguments
        else:
            for match in QUOTED.finditer(line):
                yield number, match[1], match[2]


def main():
    reference = (ROOT / REFERENCE).read_text(encoding="utf-8")
    known = {option for cell in TABLE.findall(reference) for option in OPTION.findall(cell)} | {"--version", "--help", "--help-all", "--help-markdown", "-h"}
    commands = {word for name in COMMAND.findall(reference) for part in name.split(", ") for word in part.split()[:1]}
    lab = set(OPTION.findall((ROOT / LAB).read_text(encoding="utf-8"))) if (ROOT / LAB).exists() else set()
    wrong, seen = [], 0
    for page in PAGES:
        for number, program, arguments in shown((ROOT / page).read_text(encoding="utf-8")):
            arguments = STRING.sub("", arguments).split(" | ")[0]
            words = arguments.split()
            if not words:
                continue
            seen += 1
            if program == "litecache" and re.fullmatch(r"[a-z]+", words[0]) and words[0] not in commands:
                wrong.append(f"{page}:{number}: litecache has no command {words[0]}")
            for option in OPTION.findall(arguments):
                if option not in known and not (program == "litecache-lab" and option in lab):
                    wrong.append(f"{page}:{number}: {program} has no option {option}")
    print("\n".join(wrong) or f"{seen} commands, {len(known)} options")
    # A search that finds nothing would report no errors either.
    return 1 if wrong or seen < 50 or len(known) < 80 else 0


if __name__ == "__main__":
    sys.exit(main())
