"""The paper's toy model in plain PyTorch, written from the formulas: the peer that ours is timed
against. `--golden FILE` checks it against golden vectors, `--time` measures it."""

import dataclasses
import json
import math

import torch
from torch import nn

import measure

# Passes of a network, forward or backward, that a step's arithmetic needs: each of two evaluations
# of generator and encoder has a forward pass and the gradients of weights and of inputs. E has as
# many for generated points, two more where it judges the generator, and for data five: its slope
# in x is differentiated once more, by a tangent that runs forward beside the layers.
PASSES = {"generator": 6, "encoder": 6, "energy": 3 + 2 + 5}


class Mlp(nn.Module):
    """norm: None, or where batch norms are, "before" or "after" the PReLUs."""

    def __init__(self, width, widths, norm=None):
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
                if self.norm == "before":
                    x = self.layers_bn[i](x)
                x = self.activation_fn[i](x)
                if self.norm == "after":
                    x = self.layers_bn[i](x)
        return x


def embed(t, width, dtype):
    half = width // 2
    rate = -math.log(10000) / (half - 1)
    frequency = torch.exp(torch.arange(half, dtype=dtype, device=t.device) * rate)
    angle = t.to(dtype)[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], 1)


@dataclasses.dataclass
class Widths:
    trunk: tuple
    branch: tuple = (16, 32)
    time_branch: tuple = (16, 32)
    norm: str = None
    branch_norm: bool = True


class TimeMlp(nn.Module):
    def __init__(self, width, out, widths):
        super().__init__()
        branch_norm = widths.norm if widths.branch_norm else None
        self.x_encoder = Mlp(width, widths.branch, branch_norm)
        self.t_encoder = Mlp(16, widths.time_branch)
        self.net = Mlp(widths.branch[-1] + widths.time_branch[-1], [*widths.trunk, out],
                       widths.norm)

    def forward(self, x, t):
        time_code = self.t_encoder(embed(t, 16, x.dtype))
        return self.net(torch.cat([self.x_encoder(x), time_code], 1))


class Energy(TimeMlp):
    def __init__(self, width, widths):
        super().__init__(width, 1, widths)

    def forward(self, x, t):
        return super().forward(x, t).squeeze(1)


class Encoder(TimeMlp):
    def __init__(self, width, latent, widths, code=16):
        super().__init__(width, code, widths)
        self.fc_mu = nn.Linear(code, latent)
        self.fc_var = nn.Linear(code, latent)

    def forward(self, x, t):
        code = super().forward(x, t)
        # Bounds that training does not come near, unless it is lost.
        return self.fc_mu(code), nn.functional.hardtanh(self.fc_var(code), -12, 6)


def log_normal(x, mean, variance):
    return -0.5 * ((x - mean) ** 2 / variance + torch.log(2 * math.pi * variance)).sum(1)


class Diffusion:
    def __init__(self, steps, beta_min, beta_max, dtype=torch.float32, device="cpu"):
        time_ = torch.arange(steps + 1, dtype=torch.float64) / steps * (1 - 1e-3) + 1e-3
        kept = torch.exp(-beta_min * time_ - 0.5 * (beta_max - beta_min) * time_**2)
        beta = torch.cat([1 - kept[:1], 1 - kept[1:] / kept[:-1]])
        a_bar = torch.sqrt(1 - beta).cumprod(0)
        noise = 1 - a_bar**2

        def table(values):
            return values.to(device, dtype)[:, None]

        self.steps = steps
        self.a, self.sigma = table(torch.sqrt(1 - beta)), table(torch.sqrt(beta))
        self.a_bar, self.sigma_bar = table(a_bar), table(noise.sqrt())
        self.c_x0 = table(beta[1:] * a_bar[:-1] / noise[1:])
        self.c_next = table(noise[:-1] * torch.sqrt(1 - beta[1:]) / noise[1:])
        self.variance = table(beta[1:] * noise[:-1] / noise[1:])

    def log_q(self, x_next, x, t):
        return log_normal(x_next, self.a[t + 1] * x, self.sigma[t + 1] ** 2)

    def posterior_mean(self, x0, x_next, t):
        return self.c_x0[t] * x0 + self.c_next[t] * x_next


@dataclasses.dataclass
class Rules:
    gamma: float = 0.02
    latent_weight: float = 0.1
    fake_weight: float = 1.0
    fake_margin: float = 0.0
    floor: float = 0.01
    lr: float = 1e-4
    betas: tuple = (0.0, 0.9)
    eps: float = 1e-8
    ema: float = 0.0


class Game:
    """One iteration: the energy's update, then the generator's and the encoder's."""

    def __init__(self, networks, diffusion, rules, compiled=False):
        self.networks, self.diffusion, self.rules = networks, diffusion, rules
        self.energy, self.generator, self.encoder = [
            torch.compile(networks[name]) if compiled else networks[name]
            for name in ("energy", "generator", "encoder")]
        self.slope = torch.compile(self.slope_within) if compiled else self.slope_of
        device = next(networks["energy"].parameters()).device.type

        def adam(*names):
            parameters = [p for name in names for p in networks[name].parameters()]
            fused = {"fused": True} if device == "cuda" else {}
            return torch.optim.Adam(parameters, rules.lr, rules.betas, rules.eps, **fused)

        self.adam_e, self.adam_g = adam("energy"), adam("generator", "encoder")
        self.averages = [p.detach().clone() for p in self.averaged()] if rules.ema else []

    def averaged(self):
        for network in self.networks.values():
            yield from network.parameters()
            yield from (b for b in network.buffers() if b.is_floating_point())

    def slope_of(self, x_t, x_next, t):
        """E, and the gradient of E + log q in x_t."""
        x_t = x_t.detach().requires_grad_()
        e = self.energy(x_t, t)
        total = e.sum() + self.diffusion.log_q(x_next, x_t, t).sum()
        return e, torch.autograd.grad(total, x_t, create_graph=True)[0]

    def slope_within(self, x_t, x_next, t):
        # The gradient of a compiled network has no graph: the second derivative would be lost
        # without a word. This one is taken inside of what is compiled.
        def total(x):
            e = self.networks["energy"](x, t)
            return e.sum() + self.diffusion.log_q(x_next, x, t).sum(), e

        gradient, e = torch.func.grad(total, has_aux=True)(x_t)
        return e, gradient

    def energy_loss(self, x_t, x_next, fake, t):
        rules = self.rules
        if rules.gamma:
            real_e, gradient = self.slope(x_t, x_next, t)
            fake_e = self.energy(fake, t)
            penalty = rules.gamma / 2 * gradient.square().sum(1).mean()
        else:
            real_e, fake_e = self.energy(torch.cat([x_t, fake]), torch.cat([t, t])).chunk(2)
            penalty = 0.0
        if rules.fake_margin:
            fake_e = torch.maximum(fake_e, real_e.mean().detach() - rules.fake_margin)
        return rules.fake_weight * fake_e.mean() - real_e.mean() + penalty

    def step(self, x0, t, eps_t, eps_next, z, eps_fake, eps_encoder):
        d, rules = self.diffusion, self.rules
        x_t = d.a_bar[t] * x0 + d.sigma_bar[t] * eps_t
        x_next = d.a[t + 1] * x_t + d.sigma[t + 1] * eps_next
        guess = self.generator(torch.cat([x_next, z], 1), t)
        silent = (t > 0).to(x0.dtype)[:, None]
        fake = d.posterior_mean(guess, x_next, t) + silent * d.variance[t].sqrt() * eps_fake

        self.networks["energy"].requires_grad_(True)
        self.adam_e.zero_grad(set_to_none=True)
        loss_e = self.energy_loss(x_t, x_next, fake.detach(), t)
        loss_e.backward()
        self.adam_e.step()

        self.networks["energy"].requires_grad_(False)
        self.adam_g.zero_grad(set_to_none=True)
        mean, logvar = self.encoder(torch.cat([x_t, x_next], 1), t)
        z_encoder = mean + torch.exp(0.5 * logvar) * eps_encoder
        again = self.generator(torch.cat([x_next, z_encoder], 1), t)
        variance = d.variance[t].clamp(min=rules.floor)
        recon = -log_normal(x_t, d.posterior_mean(again, x_next, t), variance).mean()
        kl = (0.5 * (mean**2 + logvar.exp() - logvar - 1)).sum(1).mean()
        mean_f, logvar_f = self.encoder(torch.cat([fake, x_next], 1), t)
        nll = 0.5 * (logvar_f + (z - mean_f) ** 2 / (1e-6 + logvar_f.exp())).sum(1).mean()
        fake_term = (self.energy(fake, t) + d.log_q(x_next, fake, t)).mean()
        loss_g = -fake_term + rules.latent_weight * nll + kl + recon
        loss_g.backward()
        self.adam_g.step()

        if self.averages:
            with torch.no_grad():
                torch._foreach_mul_(self.averages, rules.ema)
                torch._foreach_add_(self.averages, list(self.averaged()), alpha=1 - rules.ema)
        return loss_e, loss_g


def toy_game(trunk, diffusion, rules, device, dtype=torch.float32, compiled=False):
    normed = Widths(tuple(trunk), norm="before")
    networks = {"energy": Energy(2, Widths(tuple(trunk))), "generator": TimeMlp(4, 2, normed),
                "encoder": Encoder(4, 2, normed)}
    for network in networks.values():
        network.to(device, dtype)
    return Game(networks, diffusion, rules, compiled)


def check(path, arguments):
    golden, meta = measure.read_safetensors(path)
    device = arguments.device
    *betas, eps = json.loads(meta["adam"])
    diffusion = Diffusion(int(meta["num_timesteps"]), float(meta["beta_min"]),
                          float(meta["beta_max"]), torch.float64, device)
    rules = Rules(gamma=float(meta["gamma"]), latent_weight=float(meta["latent_weight"]),
                  lr=float(meta["lr"]), betas=tuple(betas), eps=eps)
    game = toy_game(json.loads(meta["hidden"]), diffusion, rules, device, torch.float64,
                    arguments.compile)
    for name, network in game.networks.items():
        network.load_state_dict({k: golden[f"weight.{name}.{k}"] for k in network.state_dict()})
    errors = {"losses": [], "weights after": []}
    for step in range(int(meta["steps"])):
        noise = [golden[f"noise.{step}.{k}"].to(device)
                 for k in ("eps_t", "eps_tp1", "z", "eps_post", "eps_enc")]
        losses = game.step(golden["x0"].to(device), golden["t"].to(device), *noise)
        if step == 0:
            errors["losses"] = [measure.difference(loss, golden[key]) for loss, key in
                                zip(losses, ("out.loss_energy", "out.loss_generator"))]
    for name, network in game.networks.items():
        for key, value in network.state_dict().items():
            wanted = golden[f"out.after.{name}.{key}"]
            errors["weights after"].append(measure.difference(value, wanted, least=1.0))
    return {kind: measure.worst(all_) for kind, all_ in errors.items()}


def prepare(arguments):
    n, device = arguments.batch, arguments.device
    game = toy_game([300, 300], Diffusion(4, 0.01, 0.1, device=device), Rules(), device,
                    compiled=arguments.compile)
    axis = torch.arange(-2.0, 3)
    modes = torch.cartesian_prod(axis, axis)[torch.arange(n) % 25].to(device)

    def once():
        noise = [torch.randn(n, 2, device=device) for _ in range(6)]
        x0 = (2 * modes + 0.1 * noise.pop()) / 2.828
        game.step(x0, torch.randint(0, 4, (n,), device=device), *noise)

    return measure.Work(once, game.networks, PASSES)


if __name__ == "__main__":
    measure.run(measure.parser_of(__doc__).parse_args(), check, prepare)
