"""The network behind FID as far as its 768 features, in plain PyTorch: the peer that ours is timed
against. `--write FILE` makes random weights for both, `--golden FILE` checks features of the real
ones (`--weights`), `--time` measures it on images of 32x32."""

import json
import struct

import torch
import torch.nn.functional as F
from torch import nn

import measure

MAX, AVERAGE = "max pool", "average pool"


def conv(out, height, width=None, stride=1, padded=True):
    return out, (height, width or height), stride, padded


def halving(out):
    return conv(out, 3, stride=2, padded=False)


class Inception(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolutions = {}  # by their names in the weight file
        self.width = 3
        self.stem = self.chain("", [
            halving(32), conv(32, 3, padded=False), conv(64, 3), MAX, conv(80, 1),
            conv(192, 3, padded=False), MAX])
        self.blocks = nn.ModuleList()
        for i, pooled in enumerate((32, 64, 64)):
            self.mixed(i, [conv(64, 1)], [conv(48, 1), conv(64, 5)],
                       [conv(64, 1), conv(96, 3), conv(96, 3)], [AVERAGE, conv(pooled, 1)])
        self.mixed(3, [halving(384)], [conv(64, 1), conv(96, 3), halving(96)], [MAX])
        for i, inner in enumerate((128, 160, 160, 192), start=4):
            row, column = conv(inner, 1, 7), conv(inner, 7, 1)
            self.mixed(i, [conv(192, 1)], [conv(inner, 1), row, conv(192, 7, 1)],
                       [conv(inner, 1), column, row, column, conv(192, 1, 7)],
                       [AVERAGE, conv(192, 1)])

    def chain(self, prefix, steps):
        """From self.width channels on; leaves there how many come out."""
        layers, count = [], 0
        for step in steps:
            if step == MAX:
                layers.append(nn.MaxPool2d(3, 2))
            elif step == AVERAGE:
                layers.append(nn.AvgPool2d(3, 1, 1, count_include_pad=False))
            else:
                out, kernel, stride, padded = step
                padding = tuple(k // 2 for k in kernel) if padded else 0
                layer = nn.Conv2d(self.width, out, kernel, stride, padding)
                self.convolutions[f"{prefix}conv" + (f"_{count}" if count else "")] = layer
                layers += [layer, nn.ReLU(inplace=True)]
                self.width, count = out, count + 1
        return nn.Sequential(*layers)

    def mixed(self, number, *branches):
        """Chains side by side. The first is one convolution, the others are called towers."""
        before, joined, made = self.width, 0, []
        for i, steps in enumerate(branches):
            tower = "" if i == 0 else "tower_" if i == 1 else f"tower_{i - 1}_"
            self.width = before
            made.append(self.chain(f"mixed_{number}_{tower}" if number else f"mixed_{tower}", steps))
            joined += self.width
        self.width = joined
        self.blocks.append(nn.ModuleList(made))

    def forward(self, images):
        """uint8 [N, 3, H, W] -> [N, 768]"""
        x = F.interpolate(images.to(next(self.parameters()).dtype), size=(299, 299),
                          mode="bilinear", align_corners=False)
        x = self.stem(x / 127.5 - 1)
        for branches in self.blocks:
            x = torch.cat([branch(x) for branch in branches], 1)
        return x.mean((2, 3))

    def weights(self):
        for name, layer in self.convolutions.items():
            yield name + ".weight", layer.weight
            yield name + ".bias", layer.bias


def write_random(path):
    """A safetensors file of weights under which features neither grow nor fade."""
    torch.manual_seed(0)
    network, header, blobs, offset = Inception(), {}, [], 0
    for name, tensor in network.weights():
        if tensor.dim() > 1:
            nn.init.kaiming_normal_(tensor)
        blob = tensor.detach().numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape),
                        "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def read_weights(path, dtype):
    network = Inception()
    tensors, _ = measure.read_safetensors(path)
    for name, parameter in network.weights():
        parameter.data = tensors[name].to(dtype)
    return network.requires_grad_(False)


@torch.no_grad()
def check(path, arguments):
    golden, _ = measure.read_safetensors(path)
    network = read_weights(arguments.weights, torch.float64).to(arguments.device)
    errors = {}
    for kind in ("", "noisy_"):
        images = golden[kind + ("u8" if kind else "images_u8")]
        wanted = golden[kind + "features"]
        mine = network(images.to(arguments.device)).cpu()
        scale = wanted.abs().clamp(min=1e-3 * wanted.abs().max().item())
        errors[kind + "features"] = ((mine - wanted).abs() / scale).max().item()
    return errors


def prepare(arguments):
    n, device = arguments.batch, arguments.device
    layout = torch.channels_last if arguments.channels_last else torch.contiguous_format
    network = read_weights(arguments.weights, torch.float32).to(device, memory_format=layout)
    forward = torch.compile(network) if arguments.compile else network
    images = torch.randint(0, 256, (n, 3, 32, 32), dtype=torch.uint8, device=device)
    images = images.to(memory_format=layout)

    @torch.no_grad()
    def once():
        torch.cat([forward(part) for part in images.split(128)])

    return measure.Work(once, {"inception": network}, {"inception": 1})


if __name__ == "__main__":
    parser = measure.parser_of(__doc__)
    parser.add_argument("--weights", metavar="FILE", help="a safetensors file of the network's")
    parser.add_argument("--write", metavar="FILE", help="random weights")
    arguments = parser.parse_args()
    if arguments.write:
        write_random(arguments.write)
    # What the golden features were made with is float32.
    measure.run(arguments, check, prepare, tolerance=1e-3)
