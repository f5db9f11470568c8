#!/usr/bin/python3
"""Times the image models on a GPU, ours beside plain PyTorch (image_peer.py): a training step of
each preset, sampling and scoring. The peer is checked against the golden vectors first; then it runs
as it comes (float32), with TF32, with bfloat16 and channels last, and with that under torch.compile
(which takes minutes to start). All take turns for a few rounds. Prints a table for
docs/performance.md."""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
GOLDEN = sorted((HERE.parent / "tests" / "golden").glob("image_step_*.safetensors"))
WORK = {  # name: (what, preset, batch)
    "CIFAR-10 step, 64": ("step", "cifar10", 64),
    "CIFAR-10 step, 256": ("step", "cifar10", 256),
    "CelebA 64x64 step, 32": ("step", "celeba64", 32),
    "LSUN 128x128 step, 8": ("step", "lsun128", 8),
    "CIFAR-10 sampling, 500": ("sample", "cifar10", 500),
    "CIFAR-10 scoring, 500": ("score", "cifar10", 500),
}
PEERS = {
    "float32": ["--precision", "float32"],
    "TF32": ["--precision", "tf32"],
    "bf16, channels last": ["--precision", "bf16", "--channels-last"],
    "bf16, channels last, compiled": ["--precision", "bf16", "--channels-last", "--compile"],
}
GFLOP_AN_IMAGE = {"step": 229.0, "sample": 4 * 2 * 6.73, "score": 2 * 6.72}  # CIFAR-10


def output(command, **variables):
    environment = dict(os.environ, **variables)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stderr or done.stdout}")
    return done.stdout


def ours(arguments, what, preset, batch):
    """Milliseconds and gigabytes."""
    out = output([arguments.bench, f"--benchmark_filter=image_{what}/{preset}/{batch}/",
                  f"--benchmark_min_time={arguments.seconds}", "--benchmark_format=json"],
                 DDAEBM_BENCH_DEVICE="cuda")
    found = json.loads(out)["benchmarks"][0]
    return found["real_time"], found.get("GB")


def peer(arguments, options, what, preset, batch):
    out = output([arguments.python, HERE / "image_peer.py", "--time", "--device", "cuda", "--what",
                  what, "--preset", preset, "--batch", str(batch), "--seconds",
                  str(arguments.seconds), *options])
    found = json.loads(out.strip().splitlines()[-1])
    return (None, None) if "error" in found else (found["ms"], found["peak_gb"])


def row(name, batch, times, gigabytes, best):
    if not times:
        return f"| {name} | refused | | | |"
    ms = statistics.median(times)
    memory = f"{gigabytes:.1f} GB" if gigabytes else ""
    return f"| {name} | {ms:.1f} ms | {1000 * batch / ms:,.0f} | {memory} | {ms / best:.2f} |"


def picture(rates):
    """Bars of images/s as SVG; rates is {work: {who: images/s}}."""
    line, label, width = 22, 250, 420
    lines, y = [], 10
    for title, of_work in rates.items():
        most = max(of_work.values())
        lines.append(f'<text x="0" y="{y + 15}" font-weight="bold">{title}, images/s</text>')
        y += line
        for who, rate in of_work.items():
            colour = "#2563eb" if who == "ours" else "#9ca3af"
            length = width * rate / most
            lines.append(f'<text x="{label - 8}" y="{y + 15}" text-anchor="end">{who}</text>'
                         f'<rect x="{label}" y="{y + 3}" width="{length:.1f}" height="15" fill="{colour}"/>'
                         f'<text x="{label + length + 6:.1f}" y="{y + 15}">{rate:,.0f}</text>')
            y += line
        y += line // 2
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{label + width + 70}" height="{y}" '
            'font-family="sans-serif" font-size="13"><rect width="100%" height="100%" fill="white"/>'
            + "\n".join(lines) + "</svg>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", type=Path, help="our benchmark program",
                        default=HERE.parent / "build" / "release" / "ddaebm_bench")
    parser.add_argument("--python", default=sys.executable, help="a python3 with torch and CUDA")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3, help="of each timing")
    parser.add_argument("--only", help="the work whose name holds this text")
    parser.add_argument("--uncompiled", action="store_true", help="without torch.compile")
    parser.add_argument("--picture", type=Path, help="an SVG of all rates, to be written here")
    parser.add_argument("--peak", type=float, default=790,
                        help="TFLOP/s of a large bfloat16 product, for the share of the chip")
    arguments = parser.parse_args()
    if not arguments.bench.exists():
        sys.exit(f"{arguments.bench} is not built; run `./dev build`")
    output([arguments.python, HERE / "image_peer.py", "--golden", *GOLDEN])

    rates = {}
    for title, (what, preset, batch) in WORK.items():
        if arguments.only and arguments.only not in title:
            continue
        runs = {"ours": lambda: ours(arguments, what, preset, batch)}
        for name, options in PEERS.items():
            if arguments.uncompiled and "--compile" in options:
                continue
            runs[name] = lambda options=options: peer(arguments, options, what, preset, batch)
        times, memory = {name: [] for name in runs}, {}
        for _ in range(arguments.rounds):
            for name, run in runs.items():
                ms, gigabytes = run()
                if ms:
                    times[name].append(ms)
                    memory[name] = gigabytes
        best = statistics.median(times["ours"])
        print(f"\n{title}\n\n| | time | images/s | memory | times ours |\n|---|---|---|---|---|")
        for name in runs:
            print(row(name, batch, times[name], memory.get(name), best))
        rates[title] = {name: 1000 * batch / statistics.median(times[name])
                        for name in runs if times[name]}
        if arguments.picture:
            arguments.picture.write_text(picture(rates))
        if preset == "cifar10":
            rate = GFLOP_AN_IMAGE[what] * batch / best
            print(f"\nOurs: {rate:.0f} TFLOP/s, {100 * rate / arguments.peak:.0f} % of the chip.")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
