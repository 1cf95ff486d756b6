"""Install the locked packages in a temporary directory, bundle, and write or compare the result."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
VENDOR = HERE.parents[1] / "ovserve/console/static/vendor"
# DOMPurify is offered under either of two licences; this project takes the first.
CHOSEN = {"dompurify": "Apache-2.0"}
OWNER = re.compile(r"node_modules/((?:@[^/]+/)?[^/]+)/")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.console_vendor", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with what is checked in; write nothing")
    check: bool = parser.parse_args().check
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        for file in ("package.json", "package-lock.json"):
            shutil.copy(HERE / file, work)
        shutil.copytree(HERE / "entries", work / "entries")
        subprocess.run(["npm", "ci", "--no-audit", "--no-fund", "--loglevel", "error"], cwd=work, check=True)
        made = build(work)
    if check:
        wrong = [
            n for n, data in made.items() if not (VENDOR / n).is_file() or (VENDOR / n).read_bytes() != data
        ]
        wrong += [p.name for p in VENDOR.iterdir() if p.name not in made]
        print(f"stale: {', '.join(wrong)}" if wrong else "the vendored files are what the entries make")
        return 1 if wrong else 0
    VENDOR.mkdir(parents=True, exist_ok=True)
    for file_name, data in made.items():
        (VENDOR / file_name).write_bytes(data)
        print(f"{len(data):8} {file_name}")
    return 0


def build(work: Path) -> dict[str, bytes]:
    """Return the files to check in, by name."""
    files: dict[str, bytes] = {}
    listed: dict[str, dict[str, object]] = {}
    used: set[str] = set()
    for entry in sorted((work / "entries").glob("*.js")):
        out, meta = work / "out" / entry.name, work / "meta.json"
        bundle = ["--bundle", "--minify", "--format=esm", "--target=es2022", "--legal-comments=none"]
        command = ["node_modules/.bin/esbuild", f"entries/{entry.name}", *bundle]
        subprocess.run(
            [*command, f"--outfile={out}", f"--metafile={meta}", "--log-level=warning"], cwd=work, check=True
        )
        packages = sorted(
            {m[1] for path in json.loads(meta.read_text())["inputs"] if (m := OWNER.search(path))}
        )
        used.update(packages)
        files[entry.name] = out.read_bytes()
        listed[entry.name] = {
            "packages": {
                p: {"version": _about(work, p)["version"], "license": _licence(work, p)} for p in packages
            },
        }
    files["uplot.css"] = (work / "node_modules/uplot/dist/uPlot.min.css").read_bytes()
    listed["uplot.css"] = {"packages": listed["uplot.js"]["packages"]}
    files["LICENSES.txt"] = "\n\n".join(_licence_text(work, package) for package in sorted(used)).encode()
    for name, about in listed.items():
        about["bytes"], about["sha256"] = len(files[name]), hashlib.sha256(files[name]).hexdigest()
    files["vendor.json"] = (json.dumps(listed, indent=2, sort_keys=True) + "\n").encode()
    return files


def _about(work: Path, package: str) -> dict[str, str]:
    about: dict[str, str] = json.loads((work / "node_modules" / package / "package.json").read_text())
    return about


def _licence(work: Path, package: str) -> str:
    return CHOSEN.get(package, _about(work, package)["license"])


def _licence_text(work: Path, package: str) -> str:
    about = _about(work, package)
    head = f"{'=' * 80}\n{package} {about['version']} ({_licence(work, package)})\n{'=' * 80}\n"
    for file in sorted((work / "node_modules" / package).iterdir()):
        if file.name.lower().startswith(("license", "licence")):
            return head + file.read_text(errors="replace").strip() + "\n"
    raise SystemExit(f"{package} has no licence file")


if __name__ == "__main__":
    sys.exit(main())
