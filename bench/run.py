#!/usr/bin/python3
"""Times ours beside plain PyTorch on one device, all in one run: training steps, sampling, scoring and
the features behind FID; how they grow with batch, width and resolution; and our operators alone.

The peers (bench/*peer.py, written from the formulas) are checked against the golden vectors first.
Then ours and each peer take turns for a few rounds, so that whatever else the machine does meets all
of them. What is finished is kept in build/bench, and a run that was stopped goes on from there. The
tables are printed and, with a picture, written to docs/performance.md.

  ./dev bench                          on the CPU, about half an hour; keep the machine quiet
  ./dev bench --device cuda            on a GPU
  ./dev bench --only toy --rounds 5    some of it; nothing is written but to the screen"""

import argparse
import dataclasses
import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from chart import Chart

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
GOLDEN = ROOT / "tests" / "golden"
CELLS = ROOT / "build" / "bench"  # what is finished is kept here
ROUNDS, SECONDS = 3, 3  # turns of each, and how long one takes
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclasses.dataclass(frozen=True)
class Family:
    """A peer's program, our preset's name for what it does, and its golden files."""
    script: str
    preset: str
    golden: str
    images: bool = False


TOY = Family("peer.py", "25gaussians-paper", "toy_step_*")
NICE = Family("nice_peer.py", "mnist-nice", "nice.*")
CIFAR10, CELEBA64, LSUN128 = [Family("image_peer.py", f"{name}-paper", "image_step_*", images=True)
                              for name in ("cifar10", "celeba64", "lsun128")]
INCEPTION = Family("inception_peer.py", "", "fid768.*")
FAMILIES = (TOY, NICE, CIFAR10, INCEPTION)  # one of each script


@dataclasses.dataclass(frozen=True)
class Work:
    title: str
    family: Family
    what: str
    batch: int
    channels: int = 0  # 0: the preset's
    size: int = 0

    def options(self):
        options = ["--batch", str(self.batch)]
        for name in ("channels", "size"):
            if getattr(self, name):
                options += [f"--{name}", str(getattr(self, name))]
        return options


def works(cuda):
    """What is timed beside all peers. A CPU gets fewer images at once."""
    def images(on_gpu, on_cpu):
        return on_gpu if cuda else on_cpu

    yield Work("toy step", TOY, "step", 200)
    yield Work("NICE_t step on MNIST", NICE, "step", 128)
    yield Work("CIFAR-10 step", CIFAR10, "step", images(64, 4))
    if cuda:
        yield Work("CIFAR-10 step, larger", CIFAR10, "step", 256)
    yield Work("CelebA-64 step", CELEBA64, "step", images(32, 2))
    yield Work("LSUN-128 step", LSUN128, "step", images(8, 1))
    yield Work("CIFAR-10 sampling", CIFAR10, "sample", images(500, 16))
    yield Work("CIFAR-10 scoring", CIFAR10, "score", images(500, 16))
    yield Work("FID features", INCEPTION, "features", images(500, 16))


def growths(cuda):
    """(title, what is varied, its values, the work at a value): ours beside one peer."""
    yield ("toy step", "batch", (50, 200, 800, 3200),
           lambda n: Work(f"toy step, batch {n}", TOY, "step", n))
    yield ("CIFAR-10 step", "batch", (16, 32, 64, 128, 256) if cuda else (1, 2, 4),
           lambda n: Work(f"CIFAR-10 step, batch {n}", CIFAR10, "step", n))
    yield ("CIFAR-10 step", "width", (64, 128, 192, 256) if cuda else (32, 64, 128),
           lambda n: Work(f"CIFAR-10 step, width {n}", CIFAR10, "step", 64 if cuda else 2,
                          channels=n))
    yield ("CIFAR-10's networks", "resolution", (32, 64, 128) if cuda else (16, 32, 64),
           lambda n: Work(f"CIFAR-10 step, {n}x{n}", CIFAR10, "step", 16 if cuda else 1, size=n))


def same_work(work, known):
    """Of those known the one that is the same but for its title, so that it is timed once; or itself."""
    def what(one):
        channels, size = (128, 32) if one.family is CIFAR10 else (0, 0)  # the preset's
        return (one.family, one.what, one.batch, one.channels or channels, one.size or size)
    return next((other for other in known if what(other) == what(work)), work)


def peers_of(family, arguments, compiles):
    """{name: (options, environment)}"""
    if arguments.device == "cuda":
        found = {"float32": [], "TF32": ["--precision", "tf32"]}
        if family.images:
            found["bf16, channels last"] = ["--precision", "bf16", "--channels-last"]
        elif family is INCEPTION:
            found["TF32, channels last"] = ["--precision", "tf32", "--channels-last"]
        found = {name: (options, {}) for name, options in found.items()}
    else:
        cores = str(len(os.sched_getaffinity(0)))
        found = {"as it comes": ([], {})}
        if family in (TOY, NICE):
            found |= {
                "one thread": (["--threads", "1"],
                               {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}),
                "BLAS threads": (["--threads", "1"],
                                 {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": cores}),
                "OpenMP threads": (["--threads", cores],
                                   {"OMP_NUM_THREADS": cores, "OPENBLAS_NUM_THREADS": "1"}),
            }
        else:
            found["channels last"] = (["--channels-last"], {})
            found["all cores"] = (["--threads", cores], {"OMP_NUM_THREADS": cores})
    if compiles and not arguments.uncompiled:
        name, (options, environment) = list(found.items())[-1]
        found[f"{name}, compiled"] = ([*options, "--compile"], environment)
    return found


class Failed(Exception):
    pass


def output(command, environment=None):
    clean = {k: v for k, v in os.environ.items() if k not in THREAD_VARIABLES}
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          env=clean | (environment or {}))
    if done.returncode == -signal.SIGALRM:
        raise Failed("not begun in time")
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit {done.returncode}"]
        raise Failed(f"{' '.join(map(str, command))}: {lines[-1]}")
    return done.stdout


def last_line(text):
    return json.loads(text.strip().splitlines()[-1])


class Contest:
    def __init__(self, arguments):
        self.arguments = arguments
        self.cuda = arguments.device == "cuda"
        about = last_line(output([arguments.python, HERE / "measure.py", "--device",
                                  arguments.device]))
        self.about = about | {"commit": arguments.commit or commit(),
                              "device": about["device"] or processor()}
        self.cells_file = CELLS / f"{arguments.device}.json"
        self.cells = {}
        if self.cells_file.exists() and not arguments.again:
            kept = json.loads(self.cells_file.read_text())
            if kept["about"]["commit"] == self.about["commit"]:
                self.about, self.cells = kept["about"], kept["cells"]

    def keep(self, key, cell):
        self.cells[key] = cell
        self.cells_file.parent.mkdir(parents=True, exist_ok=True)
        partial = self.cells_file.with_suffix(".partial")
        partial.write_text(json.dumps({"about": self.about, "cells": self.cells}, indent=1))
        partial.replace(self.cells_file)

    def golden(self, family):
        """Golden files of a peer: the repository's, or the folder's that DDAEBM_PARITY_DIR names."""
        for folder in (os.environ.get("DDAEBM_PARITY_DIR"), GOLDEN):
            files = sorted(Path(folder).glob(family.golden)) if folder else []
            if files:
                return [*map(str, files)] if family is not INCEPTION or self.arguments.inception else []
        return []

    def peer(self, family, options, environment=None):
        weights = ["--weights", self.weights()] if family is INCEPTION else []
        return output([self.arguments.python, HERE / family.script, "--device",
                       self.arguments.device, *weights, *options], environment)

    def weights(self):
        """The network's behind FID; random ones will do for its time."""
        if self.arguments.inception:
            return self.arguments.inception
        path = CELLS / "random-inception.safetensors"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            output([self.arguments.python, HERE / INCEPTION.script, "--write", path])
        return path

    def check(self):
        """Raises unless every peer agrees with its golden vectors."""
        for family in FAMILIES:
            files = self.golden(family)
            if not files:
                say(f"{family.script}: no golden vectors here (see --inception); not checked")
                continue
            if f"golden {family.script}" not in self.cells:
                found = self.peer(family, ["--golden", *files]).strip().splitlines()
                for line in found:
                    say(f"{family.script} agrees with {Path(line.split()[0]).name}:"
                        f"{line[line.index(' '):]}")
                self.keep(f"golden {family.script}", found)

    def ours(self, work):
        command = [self.arguments.bench, "--what", work.what, "--device", self.arguments.device,
                   "--seconds", self.arguments.seconds, *work.options()]
        if work.family is INCEPTION:
            command += ["--weights", self.weights()]
        else:
            command += ["--preset", work.family.preset]
        if work.family.images:
            command += ["--precision", "bf16" if self.cuda else "float32"]
        return last_line(output(command))

    def timed_peer(self, work, options, environment):
        options = ["--time", "--seconds", str(self.arguments.seconds), *work.options(), *options]
        if work.family.images:
            options += ["--what", work.what, "--preset", work.family.preset.removesuffix("-paper")]
        if "--compile" in options:
            # What a compiler makes of the formulas is checked as well.
            options += ["--limit", str(self.arguments.limit), "--golden",
                        *self.golden(work.family)]
        return last_line(self.peer(work.family, options, environment))

    def turns(self, work, peers, rounds):
        """{name: {"ms": [...], "gb": ..., "flop_a_row": ...}, or {"error": why}}"""
        found = {}
        for _ in range(rounds):
            for name, peer in {"ours": None, **peers}.items():
                of_name = found.setdefault(name, {"ms": []})
                if "error" in of_name:
                    continue
                try:
                    one = self.timed_peer(work, *peer) if peer else self.ours(work)
                except Failed as error:
                    if "compiled" not in name:
                        raise
                    one = {"error": str(error).split(": ", 1)[-1]}
                if "error" in one:
                    found[name] = {"error": one["error"]}
                else:
                    of_name["ms"].append(one["ms"])
                    of_name |= {key: value for key, value in one.items() if key != "ms"}
        return found

    def cell(self, work, peers, rounds):
        if work.title not in self.cells:
            start = time.perf_counter()
            turns = self.turns(work, peers, rounds)
            self.keep(work.title, {"batch": work.batch, "turns": turns})
            say(f"{work.title}: {duration(milliseconds(turns['ours']))}, peers "
                + ", ".join(f"{name} {shown(turns[name])}" for name in peers)
                + f" ({time.perf_counter() - start:.0f} s)")
        return self.cells[work.title]

    def operators(self):
        if "operators" not in self.cells:
            self.keep("operators", output([self.arguments.operators, self.arguments.device]))
        return self.cells["operators"]


def milliseconds(turn):
    return statistics.median(turn["ms"])


def duration(ms):
    return f"{ms:,.0f} ms" if ms >= 1000 else f"{ms:.3g} ms"


def shown(turn):
    if "error" in turn:
        return turn["error"]
    memory = f", {turn['gb']:.2g} GB" if turn.get("gb") else ""
    return f"{duration(milliseconds(turn))}{memory}"


def rate(a_second):
    return f"{a_second:,.0f}" if a_second >= 10 else f"{a_second:.2g}"


def say(text):
    print(text, file=sys.stderr, flush=True)


def commit():
    described = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty=, changed"],
                               capture_output=True, text=True)
    return described.stdout.strip() or "unknown"


def processor():
    try:
        model = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())[1]
    except (OSError, TypeError):
        model = platform.processor() or platform.machine()
    return f"{len(os.sched_getaffinity(0))} cores of {model}"


def best_peer(turns):
    timed = {name: milliseconds(turn) for name, turn in turns.items()
             if name != "ours" and turn.get("ms")}
    return min(timed.items(), key=lambda pair: pair[1], default=(None, None))


def contest_table(rows, product):
    """rows: (Work, its cell)."""
    lines = ["| work | batch | | time | images or rows a second | memory | of a large product's rate | times ours |",
             "|---|---|---|---|---|---|---|---|"]
    for work, cell in rows:
        turns, n = cell["turns"], cell["batch"]
        mine = milliseconds(turns["ours"])
        flop = next((turn["flop_a_row"] for turn in turns.values() if turn.get("flop_a_row")), None)
        for name, turn in turns.items():
            first = name == "ours"
            lead = f"| {work.title if first else ''} | {n if first else ''} | {name} |"
            if "error" in turn:
                lines.append(f"{lead} {turn['error']} | | | | |")
                continue
            ms = milliseconds(turn)
            memory = f"{turn['gb']:.2g} GB" if turn.get("gb") else ""
            share = f"{100 * flop * n / (ms / 1000) / product:.0f} %" if flop else ""
            star = "**" if first else ""
            lines.append(f"{lead} {star}{duration(ms)}{star} | {rate(1000 * n / ms)} | {memory} |"
                         f" {share} | {'' if first else f'{ms / mine:.1f}'} |")
    return "\n".join(lines)


def growth_table(title, axis, peer, values, cells):
    lines = [f"| {title}: {axis} | ours | peer, {peer} | times ours |", "|---|---|---|---|"]
    for value, cell in zip(values, cells):
        turns = cell["turns"]
        times = ("" if "error" in turns[peer] else
                 f"{milliseconds(turns[peer]) / milliseconds(turns['ours']):.1f}")
        lines.append(f"| {value} | {shown(turns['ours'])} | {shown(turns[peer])} | {times} |")
    return "\n".join(lines)


def picture(rows, grown):
    """Bars of the rate beside the best peer's, then a panel a growth."""
    chart = Chart()
    bars = []
    for work, cell in rows:
        name, ms = best_peer(cell["turns"])
        if name:
            bars.append((work.title, ms / milliseconds(cell["turns"]["ours"]), f"beside {name}"))
    chart.bars("Times as fast as the best plain PyTorch of the same run", bars)
    for title, axis, peer, values, cells in grown:
        lines = {}
        for value, cell in zip(values, cells):
            for name in ("ours", peer):
                turn = cell["turns"][name]
                if turn.get("ms"):
                    rate = 1000 * cell["batch"] / milliseconds(turn)
                    lines.setdefault(name, []).append((value, rate))
        chart.panel(f"{title}, a second", axis, lines)
    return chart.svg()


def write_page(page, device, text):
    """Puts the text between the page's marks for this device."""
    marks = f"<!-- measured on {device} -->", f"<!-- end of {device} -->"
    old = page.read_text()
    if old.count(marks[0]) != 1 or old.count(marks[1]) != 1:
        raise SystemExit(f"{page} has no lines {marks[0]} and {marks[1]}, where the tables belong")
    before, rest = old.split(marks[0])
    page.write_text(f"{before}{marks[0]}\n{text}\n{marks[1]}{rest.split(marks[1])[1]}")


def report(contest, rows, grown, operators):
    about, arguments = contest.about, contest.arguments
    command = "./dev bench" + (" --device cuda" if contest.cuda else "")
    if (arguments.rounds, arguments.seconds) != (ROUNDS, SECONDS):
        command += f" --rounds {arguments.rounds} --seconds {arguments.seconds:g}"
    turns = f"medians of {arguments.rounds} turns" if arguments.rounds > 1 else "one turn"
    parts = [f"`{command}`: {about['device']}, commit {about['commit']}, beside PyTorch "
             f"{about['version']}; {turns} of {arguments.seconds:g} s. A large product by PyTorch reaches "
             f"{about['product'] / 1e12:.3g} TFLOP/s there.",
             contest_table(rows, about["product"])]
    if not about["compiles"]:
        parts.append(f"PyTorch {about['version']} has no `torch.compile`.")
    parts += [growth_table(*growth) for growth in grown]
    if operators:
        parts.append(operators.strip())
    return "\n\n".join(parts)


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    release = ROOT / "build" / "release"
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", metavar="TEXT", help="work whose title has this text")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each timing")
    parser.add_argument("--limit", type=int, default=300,
                        help="seconds that a compiled peer has until its first step")
    parser.add_argument("--uncompiled", action="store_true", help="without torch.compile")
    parser.add_argument("--again", action="store_true", help="measures what is there already too")
    parser.add_argument("--inception", metavar="FILE", default=os.environ.get("DDAEBM_INCEPTION"),
                        help="weights of the network behind FID, else random ones "
                        "(default: $DDAEBM_INCEPTION)")
    parser.add_argument("--bench", type=Path, default=release / "ddaebm_bench", help="our program")
    parser.add_argument("--operators", type=Path, default=release / "ddaebm_operators")
    parser.add_argument("--python", default="/usr/bin/python3", help="one with PyTorch")
    parser.add_argument("--commit", help="what was built, where Git cannot tell")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "performance.md",
                        help="where the tables go; the picture goes to images/ beside it")
    return parser.parse_args()


def main():
    arguments = parse()
    for program in (arguments.bench, arguments.operators):
        if not program.exists():
            raise SystemExit(f"{program} is not built; run `./dev build`")
    has_torch = subprocess.run([arguments.python, "-c", "import torch"], capture_output=True)
    if has_torch.returncode != 0:
        raise SystemExit(f"{arguments.python} has no torch, so there is no peer; install it (Debian: "
                         "apt-get install python3-torch) or name another with --python")
    contest = Contest(arguments)
    contest.check()

    def wanted(work):
        return not arguments.only or arguments.only.lower() in work.title.lower()

    compiles = contest.about["compiles"]
    rows = [(work, contest.cell(work, peers_of(work.family, arguments, compiles), arguments.rounds))
            for work in works(contest.cuda) if wanted(work)]
    known = [work for work, _ in rows]
    grown = []
    for title, axis, values, work_at in growths(contest.cuda):
        chosen = {value: same_work(work_at(value), known) for value in values}
        chosen = {value: work for value, work in chosen.items() if wanted(work)}
        known += chosen.values()
        peers = list(peers_of(work_at(values[0]).family, arguments, compiles=False).items())
        peer = dict(peers[-1:] if contest.cuda else peers[:1])
        if chosen:
            cells = [contest.cell(work, peer, 1) for work in chosen.values()]
            grown.append((title, axis, next(iter(peer)), list(chosen), cells))
    text = report(contest, rows, grown, None if arguments.only else contest.operators())
    print(text)
    if arguments.only:
        return
    image = arguments.page.parent / "images" / f"bench-{arguments.device}.svg"
    image.write_text(picture(rows, grown))
    write_page(arguments.page, arguments.device,
               f"{text}\n\n![Rates beside plain PyTorch's, and how they grow](images/{image.name})")
    say(f"written to {arguments.page} and {image}")


if __name__ == "__main__":
    try:
        main()
    except Failed as error:
        sys.exit(str(error))
