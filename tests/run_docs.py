#!/usr/bin/env python3
"""Runs every command of a page of the documentation, as a reader would, in an empty folder.

    run_docs.py PAGE.md --ddaebm PROGRAM [--python MODULE_FOLDER] [--as-written]

Blocks of ```sh and ```python run in order; training gets small budgets (BUDGETS), unless the page is to
run as it is written: then its output and the seconds of each block are shown. A block that
cannot run here has a line above it that says why: <!-- not run: needs a GPU -->. A line
<!-- run: COMMAND --> is a command that the reader does not see, such as one that makes a file which
a reader has already. Links to other files of the repository must lead somewhere.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# What a reader's command becomes, so that it ends in a second or two.
SMALL = (
    "--quiet --set train.iterations=20 --set train.evaluation_samples=1000 "
    "--set net.trunk=[16] --set train.batch=50"
)
BUDGETS = [
    (r"--set train\.iterations=\d+ ?", ""),
    (r"--set train\.evaluation_samples=\d+ ?", ""),
    (r"ddaebm train (?!.*--resume)", f"ddaebm train {SMALL} "),
    (r"ddaebm (compare .*)--budget \d+", r"ddaebm \1--budget 20 --set train.evaluation_samples=1000"),
    (r"(ddaebm eval \S+)", r"\1 --samples 1000"),
    (r"--seeds \d+", "--seeds 1"),
    (r"(ddaebm serve \S+).*", r"timeout 5 \1 --port 0 || test $? = 124"),
    (r"--log-z", "--log-z --chains 4 --bridges 3"),
    (r"-n 10000\b", "-n 100"),
]


def blocks_of(page: str):
    """(line, language, text, reason not to run) of each block, hidden commands among them."""
    lines = page.split("\n")
    reason = None
    i = 0
    while i < len(lines):
        line = lines[i].strip()
        skip = re.fullmatch(r"<!-- not run: (.+) -->", line)
        hidden = re.fullmatch(r"<!-- run: (.+) -->", line)
        fence = re.fullmatch(r"```(\w+)", line)
        if skip:
            reason = skip[1]
        elif hidden:
            yield i + 1, "sh", hidden[1], None
        elif fence:
            end = next(k for k in range(i + 1, len(lines)) if lines[k].strip() == "```")
            yield i + 1, fence[1], "\n".join(lines[i + 1 : end]), reason
            reason = None
            i = end
        elif line:
            reason = None
        i += 1


def broken_links(path: Path, page: str):
    for link in re.findall(r"\]\(([^)#\s]+)", page):
        if "://" not in link and not (path.parent / link).exists():
            yield link


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--ddaebm", type=Path, required=True)
    parser.add_argument("--python", type=Path)
    parser.add_argument("--as-written", action="store_true")
    args = parser.parse_args()
    page = args.page.read_text()
    broken = list(broken_links(args.page, page))
    if broken:
        sys.exit(f"{args.page}: links to what is not there: {', '.join(broken)}")

    environment = {**os.environ, "PATH": f"{args.ddaebm.parent.resolve()}:{os.environ['PATH']}"}
    if not args.as_written:
        environment["OMP_NUM_THREADS"] = "1"
    if args.python:
        environment["PYTHONPATH"] = str(args.python)
    ran = 0
    with tempfile.TemporaryDirectory() as folder:
        for line, language, text, reason in blocks_of(page):
            if language not in ("sh", "python") or reason:
                continue
            if language == "python" and not args.python:
                print(f"line {line}: skipped, the Python module was not built")
                continue
            for pattern, replacement in [] if args.as_written else BUDGETS:
                text = re.sub(pattern, replacement, text)
            command = ["bash", "-euo", "pipefail", "-c", text]
            if language == "python":
                command = ["/usr/bin/python3", "-c", text]
            begin = time.monotonic()
            done = subprocess.run(command, cwd=folder, env=environment, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if done.returncode != 0:
                sys.exit(f"{args.page}:{line}: exit {done.returncode}\n{text}\n{done.stdout}")
            ran += 1
            if args.as_written:
                print(f"{text}\n{done.stdout}{time.monotonic() - begin:.1f} s\n", flush=True)
    print(f"{args.page.name}: {ran} blocks ran")


if __name__ == "__main__":
    main()
