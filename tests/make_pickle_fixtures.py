"""Writes tests/golden_pickle, which the pickle tests read. Run once, with Debian 12's python3-torch
1.13, and with PyTorch 2.11 for what has "torch2" in its name; the files are kept, so no test needs
Python. The tests know the numbers that stand here.
"""

import argparse
import collections
import io
import pickle
import struct
import sys
import zipfile
from pathlib import Path

import torch

OUT = Path(__file__).parent / "golden_pickle"
TYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]


def tensors():
    base = torch.arange(6).reshape(2, 3)
    shared = torch.arange(20.0)
    content = collections.OrderedDict((name, base.to(getattr(torch, name))) for name in TYPES)
    content["scalar"] = torch.tensor(2.5)
    content["empty"] = torch.empty(0, 3)
    content["transposed"] = base.float().t()
    content["shared_a"] = shared[2:8].view(2, 3)
    content["shared_b"] = shared[5:20:5]
    content["parameter"] = torch.nn.Parameter(torch.ones(2))
    return content


def fill(tensor, start):
    return torch.arange(start, start + tensor.numel(), dtype=tensor.dtype).reshape(tensor.shape)


class Net(torch.nn.Module):
    """Modules under dotted names, so that a state dict has the names wanted."""

    def __init__(self, modules):
        super().__init__()
        for path, module in modules:
            here = self
            *parents, last = path.split(".")
            for name in parents:
                if not hasattr(here, name):
                    here.add_module(name, torch.nn.Module())
                here = getattr(here, name)
            here.add_module(last, module)


class Fixed(torch.nn.Module):
    """A parameter that is never trained, as Fourier features have."""

    def __init__(self):
        super().__init__()
        self.W = torch.nn.Parameter(torch.zeros(4), requires_grad=False)


def numbered(net):
    """Tensor k of the state dict counts up from 100 k."""
    with torch.no_grad():
        for k, tensor in enumerate(net.state_dict().values()):
            tensor.copy_(fill(tensor, 100 * k))
    return net


def trained(params, ema):
    """Adam after a step; 'ema' as DDGAN's wrapper leaves it: views of stacks by shape, minus the
    parameter's values minus 1."""
    params = list(params)
    adam = torch.optim.Adam(params)
    kept = [p.detach().clone() for p in params]
    for p in params:
        if p.requires_grad:
            p.grad = torch.ones_like(p)
    adam.step()
    by_shape = collections.defaultdict(list)
    for p, value in zip(params, kept):
        p.data.copy_(value)
        if p.requires_grad:
            by_shape[p.shape].append(p)
    if ema:
        for group in by_shape.values():
            stack = torch.stack([-p.data - 1 for p in group])
            for i, p in enumerate(group):
                adam.state[p]["ema"] = stack[i, :]
    return adam


def parallel(net):
    """The names that DistributedDataParallel gives."""
    return Net([("module", net)])


def image_networks():
    L, C = torch.nn.Linear, torch.nn.Conv2d
    generator = Net([("all_modules.0", Fixed()), ("all_modules.1", L(2, 3)), ("z_transform.1", L(2, 3))])
    energy = Net([("all_modules.0", L(2, 2)), ("all_modules.1", C(1, 2, 3, bias=False))])
    encoder = Net([("conv1", C(2, 2, 3, bias=False)), ("conv51", C(2, 2, 1, bias=False)),
                   ("conv52", C(2, 2, 1, bias=False))])
    discriminator = Net([("t_embed.main.0", L(2, 3)), ("start_conv", C(2, 2, 1)), ("end_linear", L(2, 1))])
    return [numbered(net) for net in (generator, energy, encoder, discriminator)]


def toy_networks():
    L, B = torch.nn.Linear, torch.nn.BatchNorm1d
    generator = Net([("net.layers.0", L(2, 3)), ("net.layers_bn.0", B(3)), ("x_encoder.layers.0", L(2, 2))])
    energy = Net([("net.layers.0", L(2, 3)), ("x_encoder.layers.0", L(2, 2))])
    encoder = Net([("net.layers.0", L(2, 3)), ("net.layers_bn.0", B(3)), ("fc_mu", L(3, 2)), ("fc_var", L(3, 2))])
    return [numbered(net) for net in (generator, energy, encoder)]


def content(args, generator, critic, encoder, optimizer_g, optimizer_d):
    made = {"epoch": 51, "global_step": 1234, "args": args, "netG_dict": generator.state_dict(),
            "optimizerG": optimizer_g.state_dict(), "schedulerG": {"last_epoch": 51, "_last_lr": [1e-4]},
            "netD_dict": critic.state_dict(), "optimizerD": optimizer_d.state_dict()}
    if encoder is not None:
        made["netE_dict"] = encoder.state_dict()
    return made


def checkpoints():
    args = argparse.Namespace(dataset="cifar10", num_channels_dae=128, ch_mult=[1, 2, 2, 2], nz=100, dropout=0.1,
                              attn_resolutions=(16,), lazy_reg=None, use_ema=True)
    generator, energy, encoder, discriminator = image_networks()
    joint = list(generator.parameters()) + list(encoder.parameters())
    torch.save(content(args, parallel(generator), parallel(energy), parallel(encoder), trained(joint, True),
                       trained(energy.parameters(), True)), OUT / "authors_content.pth")
    torch.save(content(args, parallel(generator), parallel(discriminator), None,
                       trained(generator.parameters(), True), trained(discriminator.parameters(), False)),
               OUT / "ddgan_content.pth", _use_new_zipfile_serialization=False)
    torch.save(parallel(generator).state_dict(), OUT / "netG_5.pth")
    torch.save(energy.state_dict(), OUT / "netD_5.pth")
    torch.save(parallel(encoder).state_dict(), OUT / "netE_5.pth")
    # An optimiser of other networks: its averages cannot be told apart.
    torch.save(content(args, generator, energy, encoder, trained(generator.parameters(), True),
                       trained(energy.parameters(), False)), OUT / "misfit_content.pth")
    generator, energy, encoder = toy_networks()
    joint = list(generator.parameters()) + list(encoder.parameters())
    toy = argparse.Namespace(dataset="25gaussians", nz=2)
    torch.save(content(toy, generator, energy, encoder, trained(joint, False), trained(energy.parameters(), False)),
               OUT / "toy_content.pth", _use_new_zipfile_serialization=False)


def big_endian(path):
    """As a big endian machine would write it with PyTorch 2.1."""
    memory = io.BytesIO()
    torch.save({"f": torch.tensor([1.5, -2.0]), "i": torch.tensor([258, -3], dtype=torch.int16)}, memory)
    with zipfile.ZipFile(memory) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "archive/data/0":
                data = struct.pack(">2f", *struct.unpack("<2f", data))
            if name == "archive/data/1":
                data = struct.pack(">2h", *struct.unpack("<2h", data))
            new.writestr(name, data)
        new.writestr("archive/byteorder", "big")


class Python2Pickler(pickle._Pickler):
    """Writes bytes as Python 2 wrote its str."""

    dispatch = dict(pickle._Pickler.dispatch)

    def save_str2(self, value):
        if self.proto == 0:
            text = repr(value)[1:]
            self.write(b"S" + text.encode("ascii") + b"\n")
        elif len(value) < 256:
            self.write(b"U" + struct.pack("<B", len(value)) + value)
        else:
            self.write(b"T" + struct.pack("<i", len(value)) + value)
        self.memoize(value)

    dispatch[bytes] = save_str2


def python2(value, path, protocol):
    with open(path, "wb") as file:
        Python2Pickler(file, protocol).dump(value)


def cifar():
    import numpy as np

    pixels = (np.arange(2 * 3072) % 251).astype(np.uint8).reshape(2, 3072)
    python2({b"batch_label": b"testing batch 1 of 1", b"labels": [3, 9], b"data": pixels,
             b"filenames": [b"a.png", b"b.png"]}, OUT / "cifar10_python2.pkl", 2)
    python2({b"data": np.asfortranarray(pixels), b"fine_labels": [99, 0], b"coarse_labels": [11, 0]},
            OUT / "cifar100_python2.pkl", 2)
    for protocol in (3, 5):
        with open(OUT / f"cifar10_protocol{protocol}.pkl", "wb") as file:
            pickle.dump({"data": pixels, "labels": [3, 9]}, file, protocol=protocol)


class Point:
    def __init__(self):
        self.x = 1


def values():
    import numpy as np

    Point.__module__ = "shapes"
    sys.modules["shapes"] = sys.modules["__main__"]
    shared = [1]
    value = {
        "none": None, "true": True, "false": False, "ints": [0, 255, 65535, -1, 2**31, -(2**40), 2**63 - 1],
        "floats": [0.5, -1e300, float("inf")], "text": "h\u00e9llo \U0001f600\n\\u", "bytes": b"\x00\xff'\\\n",
        "empty_bytes": b"", "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)], "set": {7}, 5: "five",
        (1, 2): "pair", "ordered": collections.OrderedDict([("b", 1), ("a", 2)]), "object": Point(),
        "namespace": argparse.Namespace(nz=100), "shared": [shared, shared], "long": "x" * 300,
        "array": np.arange(6, dtype="<i2").reshape(2, 3), "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "number": np.float32(0.25), "words": np.array(["a", "b"]),
    }
    for protocol in range(6):
        with open(OUT / f"values_protocol{protocol}.pkl", "wb") as file:
            pickle.dump(value, file, protocol=protocol)
    old = {b"text": b"caf\xe9 '\"\n\\", b"unicode": "caf\u00e9 \U0001f600 \\", b"list": [1, 2.5, True, None, 2**40]}
    for protocol in (0, 1, 2):
        python2(old, OUT / f"python2_protocol{protocol}.pkl", protocol)


def main():
    torch.manual_seed(0)
    OUT.mkdir(exist_ok=True)
    if torch.__version__.startswith("2."):
        torch.save(tensors(), OUT / "types_torch2.pth")
        return
    torch.save(tensors(), OUT / "types.pth")
    torch.save(tensors(), OUT / "types_legacy.pth", _use_new_zipfile_serialization=False)
    torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), str(OUT / "script.pt"))
    torch.save(torch.nn.Linear(1, 1), OUT / "whole_network.pth")
    big_endian(OUT / "big_endian.pth")
    checkpoints()
    cifar()
    values()


if __name__ == "__main__":
    main()
