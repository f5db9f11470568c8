#!/usr/bin/python3
"""Times one training step of the paper's toy model, ours beside plain PyTorch (peer.py).

The peer is checked against the golden vectors first, then runs in several thread configurations:
its default, and those that a careful user would try. All take turns for a few rounds, so that
whatever else the machine does meets each of them. Milliseconds, lower is better."""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
GOLDEN = HERE.parent / "tests" / "golden" / "toy_step_T4.safetensors"
VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def run(command, variables):
    environment = {k: v for k, v in os.environ.items() if k not in VARIABLES}
    environment.update({k: str(v) for k, v in variables.items()})
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stderr or done.stdout}")
    return done.stdout


def peer(python, threads, variables, seconds, batch):
    """threads None: what PyTorch chooses."""
    command = [python, HERE / "peer.py", "--seconds", str(seconds), "--batch", str(batch)]
    if threads is not None:
        command += ["--threads", str(threads)]
    return float(run(command, variables).split()[-1])


def ours(bench, seconds, batch):
    out = run([bench, f"--benchmark_filter=toy_step/{batch}/", f"--benchmark_min_time={seconds}",
               "--benchmark_format=json"], {})
    return json.loads(out)["benchmarks"][0]["real_time"]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", type=Path, help="our benchmark program",
                        default=HERE.parent / "build" / "release" / "ddaebm_bench")
    parser.add_argument("--python", default="/usr/bin/python3", help="a python3 with torch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3, help="of each timing")
    parser.add_argument("--batch", type=int, default=200, choices=(200, 1000))
    parser.add_argument("--json", action="store_true", help="the times as JSON instead of a table")
    arguments = parser.parse_args()

    if not arguments.bench.exists():
        sys.exit(f"{arguments.bench} is not built; run `./dev build`")
    has_torch = subprocess.run([arguments.python, "-c", "import torch"], capture_output=True)
    if has_torch.returncode != 0:
        sys.exit(f"{arguments.python} has no torch, so there is no peer to time against; install "
                 "it (Debian: apt-get install python3-torch) or name another with --python")
    checked = run([arguments.python, HERE / "peer.py", "--golden", GOLDEN, "--seconds", "0"], {})
    print(f"peer agrees with the golden vectors: {checked.splitlines()[0]}", file=sys.stderr)

    cores = len(os.sched_getaffinity(0))
    default = "peer, as it comes"
    peers = {
        default: (None, {}),
        "peer, one thread": (1, {"OMP_NUM_THREADS": 1, "OPENBLAS_NUM_THREADS": 1}),
        "peer, BLAS threads only": (1, {"OMP_NUM_THREADS": 1, "OPENBLAS_NUM_THREADS": cores}),
        "peer, OpenMP threads only": (cores, {"OMP_NUM_THREADS": cores,
                                              "OPENBLAS_NUM_THREADS": 1}),
    }
    times = {name: [] for name in [*peers, "ours"]}
    for _ in range(arguments.rounds):
        for name, (threads, variables) in peers.items():
            times[name].append(
                peer(arguments.python, threads, variables, arguments.seconds, arguments.batch))
            # Ours runs as often as all peers together, so that it sees the same disturbances.
            times["ours"].append(ours(arguments.bench, arguments.seconds / 2, arguments.batch))

    if arguments.json:
        print(json.dumps(times))
        return
    print(f"{'ms a step, batch ' + str(arguments.batch):<28}{'median':>8}{'least':>8}")
    for name, values in times.items():
        print(f"{name:<28}{statistics.median(values):>8.2f}{min(values):>8.2f}")
    best = min(peers, key=lambda name: statistics.median(times[name]))
    for label, rival in (("its best", best), ("as it comes", default)):
        ratios = [f(times[rival]) / f(times["ours"]) for f in (statistics.median, min)]
        print(f"{'times faster: ' + label:<28}{ratios[0]:>8.2f}{ratios[1]:>8.2f}")


if __name__ == "__main__":
    main()
