"""The paper's toy model in plain PyTorch, written from the formulas: the peer that ours is timed
against. `python3 peer.py --golden FILE` checks it against golden vectors first."""

import argparse
import json
import math
import struct
import time

import torch
from torch import nn


class Mlp(nn.Module):
    def __init__(self, width, widths, norm):
        super().__init__()
        self.layers = nn.ModuleList()
        self.layers_bn = nn.ModuleList()
        self.activation_fn = nn.ModuleList()
        for i, out in enumerate(widths):
            self.layers.append(nn.Linear(width, out))
            if i + 1 < len(widths):
                self.activation_fn.append(nn.PReLU())
                if norm:
                    self.layers_bn.append(nn.BatchNorm1d(out))
            width = out
        self.norm = norm

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if i + 1 < len(self.layers):
                if self.norm:
                    x = self.layers_bn[i](x)
                x = self.activation_fn[i](x)
        return x


def embed(t, width, dtype):
    half = width // 2
    frequency = torch.exp(torch.arange(half, dtype=dtype) * (-math.log(10000) / (half - 1)))
    angle = t.to(dtype)[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], 1)


class TimeMlp(nn.Module):
    def __init__(self, width, out, hidden, norm):
        super().__init__()
        self.x_encoder = Mlp(width, [16, 32], norm)
        self.t_encoder = Mlp(16, [16, 32], False)
        self.net = Mlp(64, hidden + [out], norm)

    def forward(self, x, t):
        time_code = self.t_encoder(embed(t, 16, x.dtype))
        return self.net(torch.cat([self.x_encoder(x), time_code], 1))


class Encoder(TimeMlp):
    def __init__(self, width, latent, hidden):
        super().__init__(width, 16, hidden, True)
        self.fc_mu = nn.Linear(16, latent)
        self.fc_var = nn.Linear(16, latent)

    def forward(self, x, t):
        code = super().forward(x, t)
        return self.fc_mu(code), self.fc_var(code)


class Diffusion:
    def __init__(self, steps, beta_min, beta_max, dtype):
        time_ = torch.arange(steps + 1, dtype=torch.float64) / steps * (1 - 1e-3) + 1e-3
        kept = torch.exp(-beta_min * time_ - 0.5 * (beta_max - beta_min) * time_**2)
        beta = torch.cat([1 - kept[:1], 1 - kept[1:] / kept[:-1]])
        a_bar = torch.sqrt(1 - beta).cumprod(0)
        noise = 1 - a_bar**2
        self.steps = steps
        self.a, self.sigma = [v.to(dtype) for v in (torch.sqrt(1 - beta), torch.sqrt(beta))]
        self.a_bar, self.sigma_bar = [v.to(dtype) for v in (a_bar, noise.sqrt())]
        self.c_x0 = (beta[1:] * a_bar[:-1] / noise[1:]).to(dtype)
        self.c_next = (noise[:-1] * torch.sqrt(1 - beta[1:]) / noise[1:]).to(dtype)
        self.variance = (beta[1:] * noise[:-1] / noise[1:]).to(dtype)

    def log_q(self, x_next, x, t):
        normal = torch.distributions.Normal(self.a[t + 1, None] * x, self.sigma[t + 1, None])
        return normal.log_prob(x_next).sum(1)

    def posterior_mean(self, x0, x_next, t):
        return self.c_x0[t, None] * x0 + self.c_next[t, None] * x_next


class Game:
    """One iteration: the energy's update, then the generator's and the encoder's."""

    def __init__(self, hidden, diffusion, gamma, latent_weight, lr, betas, eps, dtype, floor=0.01):
        self.diffusion, self.gamma, self.latent_weight = diffusion, gamma, latent_weight
        self.floor = floor
        self.energy = TimeMlp(2, 1, hidden, False).to(dtype)
        self.generator = TimeMlp(4, 2, hidden, True).to(dtype)
        self.encoder = Encoder(4, 2, hidden).to(dtype)
        self.adam_e = torch.optim.Adam(self.energy.parameters(), lr, betas, eps)
        self.adam_g = torch.optim.Adam(
            [*self.generator.parameters(), *self.encoder.parameters()], lr, betas, eps)

    def step(self, x0, t, eps_t, eps_next, z, eps_fake, eps_encoder):
        d = self.diffusion
        x_t = d.a_bar[t, None] * x0 + d.sigma_bar[t, None] * eps_t
        x_next = d.a[t + 1, None] * x_t + d.sigma[t + 1, None] * eps_next
        x_t.requires_grad_()
        guess = self.generator(torch.cat([x_next, z], 1), t)
        silent = (t > 0).to(x0.dtype)[:, None]
        fake = d.posterior_mean(guess, x_next, t) + silent * d.variance[t, None].sqrt() * eps_fake

        for p in self.energy.parameters():
            p.requires_grad_(True)
        self.adam_e.zero_grad(set_to_none=True)
        real_e = self.energy(x_t, t)
        fake_e = self.energy(fake.detach(), t)
        total = real_e.sum() + d.log_q(x_next, x_t, t).sum()
        gradient = torch.autograd.grad(total, x_t, create_graph=True)[0]
        penalty = self.gamma / 2 * gradient.square().sum(1).mean()
        loss_e = fake_e.mean() - real_e.mean() + penalty
        loss_e.backward()
        self.adam_e.step()

        for p in self.energy.parameters():
            p.requires_grad_(False)
        self.adam_g.zero_grad(set_to_none=True)
        x_t = x_t.detach()
        mean, logvar = self.encoder(torch.cat([x_t, x_next], 1), t)
        z_encoder = mean + torch.exp(0.5 * logvar) * eps_encoder
        again = self.generator(torch.cat([x_next, z_encoder], 1), t)
        variance = d.variance[t, None].clamp(min=self.floor)
        normal = torch.distributions.Normal(d.posterior_mean(again, x_next, t), variance.sqrt())
        recon = -normal.log_prob(x_t).sum(1).mean()
        kl = (0.5 * (mean**2 + logvar.exp() - logvar - 1)).sum(1).mean()
        mean_f, logvar_f = self.encoder(torch.cat([fake, x_next], 1), t)
        nll = 0.5 * (logvar_f + (z - mean_f) ** 2 / (1e-6 + logvar_f.exp())).sum(1).mean()
        fake_term = (self.energy(fake, t).squeeze(1) + d.log_q(x_next, fake, t)).mean()
        loss_g = -fake_term + self.latent_weight * nll + kl + recon
        loss_g.backward()
        self.adam_g.step()
        return loss_e, loss_g


def check_golden(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        blob = file.read()
    meta = header.pop("__metadata__")
    kinds = {"F64": torch.float64, "I64": torch.int64}
    golden = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        flat = torch.frombuffer(bytearray(blob[begin:end]), dtype=kinds[entry["dtype"]])
        golden[name] = flat.reshape(entry["shape"])
    *betas, eps = json.loads(meta["adam"])
    diffusion = Diffusion(int(meta["num_timesteps"]), float(meta["beta_min"]),
                          float(meta["beta_max"]), torch.float64)
    game = Game(json.loads(meta["hidden"]), diffusion, float(meta["gamma"]),
                float(meta["latent_weight"]), float(meta["lr"]), tuple(betas), eps, torch.float64)
    for name in ("energy", "generator", "encoder"):
        network = getattr(game, name)
        own = network.state_dict()
        network.load_state_dict({k: golden[f"weight.{name}.{k}"] for k in own})
    worst = 0.0
    for step in range(int(meta["steps"])):
        noise = [golden[f"noise.{step}.{k}"] for k in ("eps_t", "eps_tp1", "z", "eps_post", "eps_enc")]
        losses = game.step(golden["x0"], golden["t"], *noise)
        if step == 0:
            for loss, key in zip(losses, ("out.loss_energy", "out.loss_generator")):
                worst = max(worst, abs(loss.item() / golden[key].item() - 1))
    for name in ("energy", "generator", "encoder"):
        for key, value in getattr(game, name).state_dict().items():
            wanted = golden[f"out.after.{name}.{key}"]
            worst = max(worst, (value - wanted).abs().max().item() / max(1.0, wanted.abs().max().item()))
    return worst


def milliseconds(batch, seconds):
    torch.manual_seed(0)
    game = Game([300, 300], Diffusion(4, 0.01, 0.1, torch.float32), 0.02, 0.1, 1e-4, (0.0, 0.9),
                1e-8, torch.float32)
    grid = torch.cartesian_prod(torch.arange(-2.0, 3), torch.arange(-2.0, 3))

    def once():
        x0 = (2 * grid[torch.arange(batch) % 25] + 0.1 * torch.randn(batch, 2)) / 2.828
        noise = [torch.randn(batch, 2) for _ in range(5)]
        game.step(x0, torch.randint(0, 4, (batch,)), *noise)

    for _ in range(20):
        once()
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 20:
        start = time.perf_counter()
        once()
        times.append(time.perf_counter() - start)
    return 1000 * sorted(times)[len(times) // 2]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--golden", help="a toy_step file; its largest relative error is printed")
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--threads", type=int, help="of PyTorch; its own choice if left out")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if arguments.golden:
        error = check_golden(arguments.golden)
        print(f"golden {error:.1e}")
        if error > 1e-9:
            raise SystemExit("the peer does not agree with the golden vectors")
    print(f"ms {milliseconds(arguments.batch, arguments.seconds):.3f}")
