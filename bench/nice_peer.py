"""The paper's MNIST model in plain PyTorch, NICE_t as the energy, with the settings of the preset
mnist-nice: the peer that ours is timed against. `--golden FILE` checks the flow against golden
vectors, `--time` measures a training step on vectors as long as MNIST's images."""

import math

import torch
from torch import nn

import measure
import peer

PIXELS, LATENT = 784, 50
FIRST_SHARE = 0.7  # of a batch, at t = 0 besides its share of the rest
RULES = peer.Rules(gamma=0.0, fake_weight=0.1, fake_margin=1000.0, lr=3e-4, betas=(0.9, 0.999),
                   ema=0.9995)
# As the toy's; without a penalty E's data need three passes as its generated points do.
PASSES = {"generator": 6, "encoder": 6, "energy": 3 + 2 + 3}


class Coupling(nn.Module):
    """What a half of x adds to the other. bend: of hidden layers; with an embedding, each adds
    PReLU(FC(code of t))."""

    def __init__(self, half, hidden, embedding=0, bend=nn.PReLU):
        super().__init__()
        widths = [half, *hidden]
        self.layers = nn.ModuleList([nn.Linear(*pair) for pair in zip(widths, widths[1:])])
        self.bends = nn.ModuleList([bend() for _ in hidden])
        self.times = nn.ModuleList([nn.Sequential(nn.Linear(embedding, out), nn.PReLU())
                                    for out in hidden if embedding])
        self.last = nn.Linear(widths[-1], half)

    def forward(self, x, code):
        for i, (layer, bend) in enumerate(zip(self.layers, self.bends)):
            x = bend(layer(x))
            if self.times:
                x = x + self.times[i](code)
        return self.last(x)


class Nice(nn.Module):
    def __init__(self, dimension, hidden, couplings=4, embedding=16, bend=nn.PReLU):
        super().__init__()
        self.embedding = embedding
        self.couplings = nn.ModuleList([Coupling(dimension // 2, hidden, embedding, bend)
                                        for _ in range(couplings)])
        self.scale = nn.Parameter(torch.zeros(dimension))

    def gaussian(self, x, t):
        """What x becomes, standard Gaussian where x has the flow's density."""
        code = peer.embed(t, self.embedding, x.dtype) if self.embedding else None
        halves = [x[:, 0::2], x[:, 1::2]]
        for i, coupling in enumerate(self.couplings):
            halves[(i + 1) % 2] = halves[(i + 1) % 2] + coupling(halves[i % 2], code)
        return torch.cat(halves, 1) * self.scale.exp()

    def forward(self, x, t):
        y = self.gaussian(x, t)
        return self.scale.sum() - 0.5 * (y.square().sum(1) + x.shape[1] * math.log(2 * math.pi))


def check(path, arguments):
    golden, meta = measure.read_safetensors(path)
    golden = {name: tensor.to(arguments.device) for name, tensor in golden.items()}
    flow = Nice(int(meta["size"]), int(meta["hidden_layers"]) * [int(meta["hidden"])],
                int(meta["couplings"]), embedding=0, bend=nn.Softplus)
    flow.to(arguments.device, torch.float64)
    parameters = {"scale.scales": flow.scale}
    for c, coupling in enumerate(flow.couplings):
        for i, layer in enumerate([*coupling.layers, coupling.last]):
            for kind in ("weight", "bias"):
                parameters[f"nice{c + 1}.dense{i + 1}.{kind}"] = getattr(layer, kind)
    for name, parameter in parameters.items():
        parameter.data.copy_(golden[f"weight.{name}"].reshape(parameter.shape))
    x = golden["x"].requires_grad_()
    log_density = flow(x, None)
    gradient = torch.autograd.grad(log_density.sum(), x, create_graph=True)[0]
    loss = -log_density.mean() + 0.5 * gradient.square().sum(1).mean()
    loss.backward()
    found = {"log_prob": log_density, "y": flow.gaussian(x, None), "grad_x": gradient, "loss": loss}
    of_parameters = {f"grad.{name}": parameter.grad for name, parameter in parameters.items()}
    return {kind: measure.worst(measure.difference(tensor, golden[f"out.{name}"].cpu())
                                for name, tensor in tensors.items())
            for kind, tensors in (("density", found), ("gradients", of_parameters))}


def mnist_game(device, compiled=False):
    time_branch = (50, 100)
    generator = peer.Widths((3200, 1600), (1600, 1600), time_branch, "after", branch_norm=False)
    encoder = peer.Widths((1600, 1600), (3200, 1600), time_branch, "after", branch_norm=False)
    networks = {"energy": Nice(PIXELS, 4 * [1000]),
                "generator": peer.TimeMlp(PIXELS + LATENT, PIXELS, generator),
                "encoder": peer.Encoder(2 * PIXELS, LATENT, encoder, code=100)}
    for network in networks.values():
        network.to(device)
    return peer.Game(networks, peer.Diffusion(4, 0.1, 10.0, device=device), RULES, compiled)


def prepare(arguments):
    n, device = arguments.batch, arguments.device
    game = mnist_game(device, arguments.compile)

    def once():
        x0, eps_t, eps_next, eps_fake = [torch.randn(n, PIXELS, device=device) for _ in range(4)]
        z, eps_encoder = [torch.randn(n, LATENT, device=device) for _ in range(2)]
        t = torch.randint(0, 4, (n,), device=device)
        t = t.masked_fill(torch.rand(n, device=device) < FIRST_SHARE, 0)
        game.step(x0, t, eps_t, eps_next, z, eps_fake, eps_encoder)

    return measure.Work(once, game.networks, PASSES)


if __name__ == "__main__":
    measure.run(measure.parser_of(__doc__).parse_args(), check, prepare)
