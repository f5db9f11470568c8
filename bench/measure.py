"""What the peers share: their command line, golden files, and how their time is taken."""

import argparse
import contextlib
import json
import math
import resource
import signal
import struct
import time

import torch

KINDS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "I64": torch.int64,
         "U8": torch.uint8}


def read_safetensors(path):
    """The tensors and the metadata of a file."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        blob = file.read()
    meta = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        flat = torch.frombuffer(bytearray(blob[first:last]), dtype=KINDS[entry["dtype"]])
        tensors[name] = flat.reshape(entry["shape"])
    return tensors, meta


def difference(mine, wanted, least=1e-3):
    """Relative to the largest entry, or to `least` where all should be zero."""
    error = (mine.detach().cpu().flatten() - wanted.flatten()).abs().max()
    return (error / wanted.abs().max().clamp(min=least)).item()


def worst(errors):
    # Unlike Python's, this maximum is NaN where an entry is.
    return torch.tensor(list(errors)).max().item()


@contextlib.contextmanager
def count_multiplications(networks, counts):
    """Into `counts`: those of a pass of each network, a row, in its linear layers and convolutions."""
    found = {name: [0, 0] for name in networks}  # multiplications, rows
    hooks = []

    def layer_hook(name):
        def count(layer, _, out):
            found[name][0] += out.numel() // len(layer.weight) * layer.weight.numel()
        return count

    def network_hook(name):
        def count(_, inputs, __):
            found[name][1] += len(inputs[0])
        return count

    for name, network in networks.items():
        hooks.append(network.register_forward_hook(network_hook(name)))
        for layer in network.modules():
            if getattr(layer, "weight", None) is not None and layer.weight.dim() > 1:
                hooks.append(layer.register_forward_hook(layer_hook(name)))
    yield
    for hook in hooks:
        hook.remove()
    counts.update({name: done / rows for name, (done, rows) in found.items() if rows})


def product_rate(device):
    """FLOP/s of a large product: what a share of the chip is measured against."""
    cuda = device == "cuda"
    side = 8192 if cuda else 2048
    a, b = [torch.randn(side, side, device=device, dtype=torch.bfloat16 if cuda else torch.float32)
            for _ in range(2)]
    best = math.inf
    for _ in range(20):
        start = time.perf_counter()
        a @ b
        if cuda:
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return 2 * side**3 / best


def milliseconds(once, arguments):
    """The median of one call's time, once it has been called for a while."""
    cuda = arguments.device == "cuda"

    def of_calls(times):
        start = time.perf_counter()
        for _ in range(times):
            once()
        if cuda:
            torch.cuda.synchronize()
        return 1000 * (time.perf_counter() - start) / times

    end = time.perf_counter() + arguments.seconds / 4
    while time.perf_counter() < end:
        of_calls(1)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    # A GPU runs on from one iteration to the next without waiting for the host.
    rounds = []
    end = time.perf_counter() + arguments.seconds
    while not rounds or time.perf_counter() < end:
        rounds.append(of_calls(5 if cuda else 1))
    return sorted(rounds)[len(rounds) // 2]


class Work:
    """once(): one call of it. passes: how many passes of each network, forward or backward, its
    arithmetic needs."""

    def __init__(self, once, networks, passes):
        self.once, self.networks, self.passes = once, networks, passes


def measure(prepare, arguments):
    cuda = arguments.device == "cuda"
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = arguments.precision != "float32"
    torch.backends.cuda.matmul.allow_tf32 = arguments.precision != "float32"
    torch.manual_seed(0)
    work = prepare(arguments)
    # The signal ends the process whatever it is in.
    signal.alarm(arguments.limit)
    counts = {}
    with (contextlib.nullcontext() if arguments.compile
          else count_multiplications(work.networks, counts)):
        work.once()
    if cuda:
        torch.cuda.synchronize()
    signal.alarm(0)
    ms = milliseconds(work.once, arguments)
    flop = sum(2 * counts[name] * passes for name, passes in work.passes.items()) if counts else None
    peak = (torch.cuda.max_memory_allocated() if cuda  # else of the whole process
            else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return {"ms": ms, "flop_a_row": flop, "gb": peak / 1e9}


def parser_of(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--golden", nargs="+", default=[], metavar="FILE",
                        help="golden vectors to be checked against first")
    parser.add_argument("--time", action="store_true", help="prints a line of JSON")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cpu")
    parser.add_argument("--precision", choices=("float32", "tf32", "bf16"), default="float32")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--compile", action="store_true", help="with torch.compile")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--limit", type=int, default=0,
                        help="seconds until the first step, or the check, must have ended; 0: none")
    parser.add_argument("--threads", type=int, help="of PyTorch; its own choice if left out")
    return parser


def run(arguments, check, prepare, tolerance=1e-9):
    """check(path, arguments): the largest relative error of each kind of result; prepare(arguments):
    the Work."""
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    agree = True
    signal.alarm(arguments.limit)
    for path in arguments.golden:
        errors = check(path, arguments)
        print(path, ", ".join(f"{kind} {error:.1e}" for kind, error in errors.items()))
        agree = agree and all(error <= tolerance for error in errors.values())
    signal.alarm(0)
    if not agree:
        raise SystemExit("the peer does not agree with the golden vectors")
    if arguments.time:
        try:
            result = measure(prepare, arguments)
        except Exception as error:
            # What torch.compile refuses is a result too, and so is what a GPU has no room for.
            full = isinstance(error, torch.cuda.OutOfMemoryError)
            if not arguments.compile and not full:
                raise
            reason = "out of memory" if full else f"{type(error).__name__}: {error}".split("\n")[0]
            result = {"error": reason}
        print(json.dumps(result))


if __name__ == "__main__":
    parser = parser_of("What this PyTorch is, and what a large product reaches with it, as JSON.")
    arguments = parser.parse_args()
    cuda = arguments.device == "cuda"
    if cuda and not torch.cuda.is_available():
        raise SystemExit(f"torch {torch.__version__} finds no GPU")
    print(json.dumps({"version": torch.__version__, "compiles": hasattr(torch, "compile"),
                      "device": torch.cuda.get_device_name() if cuda else None,
                      "threads": torch.get_num_threads(),
                      "product": product_rate(arguments.device)}))
