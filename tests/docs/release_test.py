"""Requirements of a release: the changelog contains the project's version, every library that the build uses is in
THIRD_PARTY_LICENSES.md, third-party data comes with its licence text, and the shipped model contains nothing copyleft."""
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# CMake's package names that differ from the page's; None: part of the system.
NAMES = {"Threads": None, "PkgConfig": None, "CUDAToolkit": "CUDA runtime", "fmt": "{fmt}", "nlohmann_json": "nlohmann-json", "dnnl": "oneDNN",
         "Eigen3": "Eigen", "HWY": "Highway", "LIBEDIT": "libedit", "UTF8PROC": "utf8proc", "XXHASH": "xxHash", "GTest": "GoogleTest",
         "benchmark": "Google Benchmark"}
ASKED = re.compile(r"^\s*(?:find_package|pkg_check_modules)\((\w+)", re.MULTILINE)
LICENSED = {"data/words": "LICENSE.*", "data/haystack": "LICENSE.*", "models/litecache-demo-16m/demo": "LICENSE.*"}
COPYLEFT = re.compile(r"\b(A|L)?GPL|MPL|CC-BY-SA", re.IGNORECASE)


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def main():
    wrong = []
    version = re.search(r"^project\(litecache VERSION ([\d.]+)", read("CMakeLists.txt"), re.MULTILINE)[1]
    if not re.search(rf"^## {re.escape(version)}\b", read("CHANGELOG.md"), re.MULTILINE):
        wrong.append(f"CHANGELOG.md has no section for version {version} of CMakeLists.txt")

    asked = {name for path in [*ROOT.glob("cmake/*.cmake"), *ROOT.glob("src/*/CMakeLists.txt")]
             for name in ASKED.findall(path.read_text(encoding="utf-8"))}
    listed = read("THIRD_PARTY_LICENSES.md")
    for name in sorted(asked):
        shown = NAMES.get(name, name)
        if shown is not None and shown not in listed:
            wrong.append(f"THIRD_PARTY_LICENSES.md does not list {shown}, which the build asks for as {name}")

    for folder, pattern in LICENSED.items():
        if not list((ROOT / folder).glob(pattern)):
            wrong.append(f"{folder} has no {pattern}")
    packages = json.loads(read("models/litecache-demo-16m/packages.json"))
    for package in packages:
        if COPYLEFT.search(package["licence"]):
            wrong.append(f"the shipped model was trained on {package['name']}, whose licence is {package['licence']}")

    print("\n".join(wrong) or f"version {version}, {len(asked)} libraries, {len(packages)} packages")
    # A search that finds nothing would report no errors either.
    return 1 if wrong or len(asked) < 10 or len(packages) < 100 else 0


if __name__ == "__main__":
    sys.exit(main())
