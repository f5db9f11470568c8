"""The paper's image model in plain PyTorch, written from the formulas: the peer that ours is timed
against. `--golden FILE...` checks it against golden vectors, `--time` measures it."""

import dataclasses
import json
import math

import torch
import torch.nn.functional as F
from torch import nn

import measure

NETWORKS = ("generator", "energy", "encoder")
ROOT_HALF = math.sqrt(0.5)


@dataclasses.dataclass
class Settings:
    size: int = 32
    channels: int = 128
    multipliers: tuple = (1, 2, 2, 2)
    blocks: int = 2
    energy_blocks: int = 2
    attention: tuple = (16,)
    dropout: float = 0.1
    fir: bool = True  # NCSN++: FIR resampling and an input pyramid; otherwise DDPM++
    latent: int = 100
    latent_width: int = 256
    latent_layers: int = 4
    large_encoder: bool = False
    encoder_width: int = 64
    encoder_time: int = 256
    steps: int = 4
    beta_min: float = 0.1
    beta_max: float = 20.0
    recovery: bool = False  # the times of recovery likelihood
    gamma: float = 0.02
    latent_weight: float = 0.1
    recon: str = "mse_posterior"  # or mse_prior, nll
    importance: tuple = None  # lambda at t' = 1 and 1/2
    lr: float = 1e-4
    ema: float = 0.9999


PRESETS = {
    "cifar10": Settings(),
    "celeba64": Settings(size=64, channels=64, multipliers=(1, 1, 2, 2, 4), gamma=0.002, lr=5e-5,
                         ema=0.999),
    "lsun128": Settings(size=128, channels=64, multipliers=(1, 2, 2, 4, 4), dropout=0.0, fir=False,
                        large_encoder=True, recovery=True, gamma=0.005, recon="nll",
                        importance=(0.6, 0.2), lr=5e-5, ema=0.999),
}
# Passes of a network, forward or backward, that a step's arithmetic needs: each of two evaluations
# of generator and encoder has a forward pass and the gradients of weights and of inputs. E has as
# many for generated points, two more where it judges the generator, and for data six: its slope in x
# is differentiated once more.
PASSES = {"generator": 6, "encoder": 6, "energy": 3 + 2 + 6}
PARAMETERS = {"cifar10": {"generator": 48_432_515, "energy": 40_279_171, "encoder": 4_772_872}}


def begin(layer, gain=1.0):
    nn.init.xavier_uniform_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def conv(width, out, kernel, gain=1.0, **how):
    return begin(nn.Conv2d(width, out, kernel, **{"padding": kernel // 2, **how}), gain)


def linear(width, out):
    return begin(nn.Linear(width, out))


def embed(t, width, dtype):
    half = width // 2
    rate = -math.log(10000) / (half - 1)
    frequency = torch.exp(torch.arange(half, dtype=dtype, device=t.device) * rate)
    angle = t.to(dtype)[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], 1)


class Resample(nn.Module):
    """Half or twice the size, or one pixel larger ("smooth"): the FIR filter (1, 3, 3, 1) along
    both axes, or a box. FIR as products with its matrix: the double backward of a depthwise
    convolution visits channel by channel, for a gradient of the filter that nobody asks for."""

    def __init__(self, kind, size, fir):
        super().__init__()
        self.kind, self.fir = kind, fir
        taps = torch.tensor([[[1.0, 3.0, 3.0, 1.0]]]) / 8
        units = torch.eye(size)[:, None]
        if kind == "half":
            columns = F.conv1d(units, taps, stride=2, padding=1)
        elif kind == "twice":
            columns = F.conv_transpose1d(units, 2 * taps, stride=2, padding=1)
        else:
            columns = F.conv1d(units, taps, padding=2)
        self.register_buffer("matrix", columns[:, 0], persistent=False)  # [size, new size]

    def forward(self, x):
        if self.fir:
            return torch.einsum("ncij,ih,jw->nchw", x, self.matrix, self.matrix)
        return F.avg_pool2d(x, 2) if self.kind == "half" else F.interpolate(x, scale_factor=2)


class Norm(nn.GroupNorm):
    """With a latent width, scale and shift are linear in the latent's map."""

    def __init__(self, channels, latent_width=0):
        groups = max(1, min(channels // 4, 32))
        super().__init__(groups, channels, eps=1e-6, affine=not latent_width)
        self.style = None
        if latent_width:
            self.style = linear(latent_width, 2 * channels)
            nn.init.ones_(self.style.bias.data[:channels])

    def forward(self, x, latent=None):
        x = super().forward(x)
        if self.style is None:
            return x
        scale, shift = self.style(latent)[:, :, None, None].chunk(2, 1)
        return torch.addcmul(shift, scale, x)


class Pixelwise(nn.Module):
    def __init__(self, channels, gain):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, channels))  # [in, out]
        self.bias = nn.Parameter(torch.empty(channels))
        begin(self, gain)

    def forward(self, x):
        return F.linear(x, self.weight.t(), self.bias)


class Attention(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = Norm(channels)
        self.query, self.key, self.value = [Pixelwise(channels, math.sqrt(0.1)) for _ in range(3)]
        self.out = Pixelwise(channels, 1e-5)

    def forward(self, x):
        pixels = self.norm(x).flatten(2).transpose(1, 2)  # [N, HW, C]
        scores = self.query(pixels) @ self.key(pixels).transpose(1, 2) / math.sqrt(x.shape[1])
        mixed = self.out(scores.softmax(-1) @ self.value(pixels))
        return (x + mixed.transpose(1, 2).reshape(x.shape)) * ROOT_HALF


class Block(nn.Module):
    """A BigGAN residual block, with attention after it where asked for."""

    def __init__(self, settings, width, out, size, latent_width, resize=None, attend=False):
        super().__init__()
        self.norm0 = Norm(width, latent_width)
        self.conv0 = conv(width, out, 3)
        self.time = linear(4 * settings.channels, out)
        self.norm1 = Norm(out, latent_width)
        self.dropout = nn.Dropout(settings.dropout)
        self.conv1 = conv(out, out, 3, gain=1e-5)
        self.skip = conv(width, out, 1) if width != out or resize else nn.Identity()
        self.resize = Resample(resize, size, settings.fir) if resize else None
        self.attention = Attention(out) if attend else nn.Identity()

    def forward(self, x, time_code, latent):
        h = F.silu(self.norm0(x, latent))
        if self.resize is not None:
            h, x = self.resize(h), self.resize(x)
        h = self.conv0(h) + self.time(time_code)[:, :, None, None]
        h = self.conv1(self.dropout(F.silu(self.norm1(h, latent))))
        return self.attention((self.skip(x) + h) * ROOT_HALF)


class Pyramid(nn.Module):
    """The input's own way down one size, added to the features h there."""

    def __init__(self, width, out, size):
        super().__init__()
        self.smooth = Resample("smooth", size, True)
        self.conv = conv(width, out, 3, stride=2, padding=0)

    def forward(self, x, h):
        return (self.conv(self.smooth(x)) + h) * ROOT_HALF


class UNet(nn.Module):
    def __init__(self, settings, blocks, latent_width):
        super().__init__()
        s, self.channels = settings, settings.channels
        levels = len(s.multipliers)
        self.time = nn.Sequential(linear(s.channels, 4 * s.channels), nn.SiLU(),
                                  linear(4 * s.channels, 4 * s.channels), nn.SiLU())
        self.first = conv(3, s.channels, 3)
        self.down, self.middle, self.up = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        width, pyramid, skips = s.channels, 3, [s.channels]

        def block(*arguments, **how):
            return Block(s, *arguments, latent_width, **how)

        for i, multiplier in enumerate(s.multipliers):
            size = s.size >> i
            for _ in range(blocks):
                self.down.append(block(width, s.channels * multiplier, size,
                                       attend=size in s.attention))
                width = s.channels * multiplier
                skips.append(width)
            if i + 1 < levels:
                self.down.append(block(width, width, size, resize="half"))
                if s.fir:
                    self.down.append(Pyramid(pyramid, width, size))
                    pyramid = width
                skips.append(width)
        self.middle.extend([block(width, width, size, attend=True), block(width, width, size)])
        for i in reversed(range(levels)):
            size = s.size >> i
            for b in range(blocks + 1):
                self.up.append(block(width + skips.pop(), s.channels * s.multipliers[i], size,
                                     attend=b == blocks and size in s.attention))
                width = s.channels * s.multipliers[i]
            if i > 0:
                self.up.append(block(width, width, size, resize="twice"))
        self.last = nn.Sequential(Norm(width), nn.SiLU(), conv(width, 3, 3, gain=1e-5))

    def features(self, x, t, latent=None):
        time_code = self.time(embed(t, self.channels, x.dtype))
        skips, pyramid = [self.first(x)], x
        for layer in self.down:
            if isinstance(layer, Pyramid):
                skips[-1] = pyramid = layer(pyramid, skips[-1])
            else:
                skips.append(layer(skips[-1], time_code, latent))
        h = skips[-1]
        for layer in self.middle:
            h = layer(h, time_code, latent)
        for layer in self.up:
            if layer.resize is None:
                h = torch.cat([h, skips.pop()], 1)
            h = layer(h, time_code, latent)
        return self.last(h).to(x.dtype)


class Energy(UNet):
    def __init__(self, settings):
        super().__init__(settings, settings.energy_blocks, 0)

    def forward(self, x, t):
        return -0.5 * (x - self.features(x, t)).square().flatten(1).sum(1)


class Generator(UNet):
    def __init__(self, settings):
        super().__init__(settings, settings.blocks, settings.latent_width)
        widths = [settings.latent] + (settings.latent_layers + 1) * [settings.latent_width]
        self.map = nn.Sequential(*[layer for width, out in zip(widths, widths[1:])
                                   for layer in (linear(width, out), nn.SiLU())])

    def forward(self, x_next, z, t):
        z = z * torch.rsqrt(z.square().mean(1, keepdim=True) + 1e-8)
        return self.features(x_next, t, self.map(z)).tanh()


class TimeMap(nn.Sequential):
    def __init__(self, width):
        super().__init__(linear(width, width), nn.LeakyReLU(0.2), linear(width, width),
                         nn.LeakyReLU(0.2))
        self.width = width

    def forward(self, t, dtype):
        return super().forward(embed(t, self.width, dtype))


class Encoder(nn.Module):
    def __init__(self, settings):
        super().__init__()
        self.time = TimeMap(settings.encoder_time)
        halvings = int(math.log2(settings.size // 4))
        widths = [6] + [settings.encoder_width << i for i in range(halvings + 1)]
        self.convs = nn.ModuleList([nn.Conv2d(6, widths[1], 3, padding=1, bias=False)])
        for width, out in zip(widths[1:], widths[2:]):
            self.convs.append(nn.Conv2d(width, out, 4, stride=2, padding=1, bias=False))
        self.times = nn.ModuleList([linear(settings.encoder_time, out) for out in widths[1:]])
        self.mean = nn.Conv2d(widths[-1], settings.latent, 4)
        self.logvar = nn.Conv2d(widths[-1], settings.latent, 4)

    def forward(self, x_t, x_next, t):
        time_code = self.time(t, x_t.dtype)
        h = torch.cat([x_t, x_next], 1)
        for layer, bias in zip(self.convs, self.times):
            h = F.leaky_relu(layer(h), 0.2) + bias(time_code)[:, :, None, None]
        return self.mean(h).flatten(1).to(x_t.dtype), self.logvar(h).flatten(1).to(x_t.dtype)


class HalvingBlock(nn.Module):
    def __init__(self, width, out, size, time_width):
        super().__init__()
        self.conv0 = conv(width, out, 3)
        self.conv1 = conv(out, out, 3, gain=1e-5)
        self.time = linear(time_width, out)
        self.skip = conv(width, out, 1, bias=False)
        self.halve = Resample("half", size, True)

    def forward(self, x, time_code):
        h = self.conv0(F.leaky_relu(x, 0.2)) + self.time(time_code)[:, :, None, None]
        h = self.conv1(self.halve(F.leaky_relu(h, 0.2)))
        return (self.skip(self.halve(x)) + h) * ROOT_HALF


class LargeEncoder(nn.Module):
    def __init__(self, settings):
        super().__init__()
        self.time = TimeMap(settings.encoder_time)
        widths = [settings.encoder_width * m for m in (2, 4, 8, 8, 8, 8, 8)]
        self.first = conv(6, widths[0], 1)
        self.blocks = nn.ModuleList([
            HalvingBlock(width, out, settings.size >> i, settings.encoder_time)
            for i, (width, out) in enumerate(zip(widths, widths[1:]))])
        self.last = conv(widths[-1] + 1, widths[-1], 3)
        self.mean = linear(widths[-1], settings.latent)
        self.logvar = linear(widths[-1], settings.latent)

    def forward(self, x_t, x_next, t):
        time_code = self.time(t, x_t.dtype)
        h = self.first(torch.cat([x_t, x_next], 1))
        for block in self.blocks:
            h = block(h, time_code)
        # One more channel: the mean deviation of features between images, in groups of four.
        n = h.shape[0]
        group = next(g for g in (4, 3, 2, 1) if n % g == 0)
        variance = h.reshape(group, n // group, -1).var(0, unbiased=False)
        deviation = torch.sqrt(variance + 1e-8).mean(1).repeat(group)[:, None, None, None]
        h = torch.cat([h, deviation.expand(-1, 1, *h.shape[2:]).to(h.dtype)], 1)
        code = F.leaky_relu(self.last(h), 0.2).sum((2, 3))
        mean, logvar = self.mean(code), -F.softplus(self.logvar(code))
        return mean.to(x_t.dtype), logvar.to(x_t.dtype)


class Diffusion:
    """Tables over t; each is picked with t as [N, 1, 1, 1]."""

    def __init__(self, settings, device, dtype):
        steps = settings.steps
        k = torch.arange(steps + 1, dtype=torch.float64)
        time_ = k / steps * (1 - 1e-3) + 1e-3
        if settings.recovery:
            time_ = k * (1000 // (2 * (steps - 1))) / 999
            time_[-1] = 1
        slope = 0.5 * (settings.beta_max - settings.beta_min)
        kept = torch.exp(-settings.beta_min * time_ - slope * time_**2)
        beta = torch.cat([1 - kept[:1], 1 - kept[1:] / kept[:-1]]).clamp(max=0.999)
        a_bar = torch.sqrt(1 - beta).cumprod(0)
        noise = 1 - a_bar**2
        variance = (beta[1:] * noise[:-1] / noise[1:]).clamp(min=1e-4)
        deviation = variance.sqrt()
        deviation[0] = 0  # x_0 gets no noise
        weight = torch.ones(steps)
        if settings.importance:
            whole, half = settings.importance
            weight = whole * time_[1:] ** (math.log(half / whole) / math.log(0.5))
        tables = {"a_bar": a_bar, "sigma_bar": noise.sqrt(), "a_next": torch.sqrt(1 - beta[1:]),
                  "sigma_next": beta[1:].sqrt(), "c_x0": beta[1:] * a_bar[:-1] / noise[1:],
                  "c_next": noise[:-1] * torch.sqrt(1 - beta[1:]) / noise[1:], "std": deviation,
                  "recon_variance": variance.clamp(min=variance[1].item()), "weight": weight}
        self.tables = {name: table.to(device, dtype) for name, table in tables.items()}
        self.steps = steps

    def pick(self, t, *names):
        return [self.tables[name][t, None, None, None] for name in names]

    def log_q(self, x_next, x, t):
        a, sigma = self.pick(t, "a_next", "sigma_next")
        return log_normal(x_next, a * x, sigma.square())

    def posterior_mean(self, x0, x_next, t):
        c_x0, c_next = self.pick(t, "c_x0", "c_next")
        return c_x0 * x0 + c_next * x_next

    def posterior_sample(self, x0, x_next, t, eps):
        return self.posterior_mean(x0, x_next, t) + self.pick(t, "std")[0] * eps


def log_normal(x, mean, variance):
    error = (x - mean).square() / variance + variance.log() + math.log(2 * math.pi)
    return -0.5 * error.flatten(1).sum(1)


class Game:
    """One iteration: the energy's update, then the generator's and the encoder's."""

    def __init__(self, settings, device="cpu", dtype=torch.float32, bf16=False,
                 memory_format=torch.contiguous_format, compiled=False):
        self.settings, self.device, self.bf16 = settings, device, bf16
        self.diffusion = Diffusion(settings, device, dtype)
        encoder = LargeEncoder if settings.large_encoder else Encoder
        made = [make(settings).to(device, dtype, memory_format=memory_format)
                for make in (Generator, Energy, encoder)]
        self.networks = dict(zip(NETWORKS, made))
        self.averages = None  # made by the first step
        self.generator, self.energy, self.encoder = made
        self.penalised = self.energy_and_gradient
        if compiled:
            self.generator, self.energy, self.encoder = [torch.compile(network) for network in made]
            self.penalised = torch.compile(self.energy_and_gradient_compiled)

        def adam(*names):
            parameters = [p for name in names for p in self.networks[name].parameters()]
            fused = {"fused": True} if device == "cuda" else {}
            return torch.optim.Adam(parameters, settings.lr, (0.0, 0.9), 1e-8, **fused)

        self.adam_e, self.adam_g = adam("energy"), adam("generator", "encoder")

    def autocast(self):
        return torch.autocast(self.device, torch.bfloat16, enabled=self.bf16)

    def energy_and_gradient(self, x_t, x_next, t):
        x_t = x_t.detach().requires_grad_()
        with self.autocast():
            e = self.energy(x_t, t)
        total = e.sum() + self.diffusion.log_q(x_next, x_t, t).sum()
        return e, torch.autograd.grad(total, x_t, create_graph=True)[0]

    def energy_and_gradient_compiled(self, x_t, x_next, t):
        # The gradient of a compiled network has no graph: the second derivative would be lost
        # without a word. This one is taken inside of what is compiled.
        def total(x):
            with self.autocast():
                e = self.networks["energy"](x, t)
            return e.sum() + self.diffusion.log_q(x_next, x, t).sum(), e

        gradient, e = torch.func.grad(total, has_aux=True)(x_t)
        return e, gradient

    def step(self, x0, t, eps_t, eps_next, z, eps_fake, eps_encoder):
        d, settings = self.diffusion, self.settings
        a_bar, sigma_bar, a_next, sigma_next = d.pick(t, "a_bar", "sigma_bar", "a_next",
                                                      "sigma_next")
        x_t = a_bar * x0 + sigma_bar * eps_t
        x_next = a_next * x_t + sigma_next * eps_next
        with self.autocast():
            guess = self.generator(x_next, z, t)
        fake = d.posterior_sample(guess, x_next, t, eps_fake)

        self.networks["energy"].requires_grad_(True)
        self.adam_e.zero_grad(set_to_none=True)
        real_e, gradient = self.penalised(x_t, x_next, t)
        with self.autocast():
            fake_e = self.energy(fake.detach(), t)
        penalty = settings.gamma / 2 * gradient.square().flatten(1).sum(1).mean()
        loss_e = fake_e.mean() - real_e.mean() + penalty
        loss_e.backward()
        self.adam_e.step()

        self.networks["energy"].requires_grad_(False)
        self.adam_g.zero_grad(set_to_none=True)
        with self.autocast():
            mean, logvar = self.encoder(x_t, x_next, t)
            again = self.generator(x_next, mean + torch.exp(0.5 * logvar) * eps_encoder, t)
            mean_f, logvar_f = self.encoder(fake, x_next, t)
            fake_e_g = self.energy(fake, t)
        chosen = d.posterior_mean(guess if settings.recon == "mse_prior" else again, x_next, t)
        weight, variance = d.pick(t, "weight", "recon_variance")
        if settings.recon == "nll":
            recon = -log_normal(x_t, chosen, variance)
        else:
            recon = (x_t - chosen).square().flatten(1).sum(1)
        recon = (weight.flatten() * recon).mean()
        kl = (0.5 * (mean**2 + logvar.exp() - logvar - 1)).sum(1).mean()
        nll = 0.5 * (logvar_f + (z - mean_f) ** 2 / (1e-6 + logvar_f.exp())).sum(1).mean()
        latent = settings.latent_weight * nll
        fake_term = (fake_e_g + d.log_q(x_next, fake, t)).mean()
        loss_g = -fake_term + latent + kl + recon
        loss_g.backward()
        self.adam_g.step()

        with torch.no_grad():
            now = [p for network in self.networks.values() for p in network.parameters()]
            if self.averages is None:
                self.averages = [p.clone() for p in now]
            torch._foreach_mul_(self.averages, settings.ema)
            torch._foreach_add_(self.averages, now, alpha=1 - settings.ema)
        return {"x_t": x_t, "x_tp1": x_next, "x0_pred": guess, "x_pos": fake, "x0_recon": again,
                "energy_real": real_e, "energy_fake": fake_e, "grad_input": gradient,
                "post_mean": mean, "post_logvar": logvar, "gp": penalty,
                "loss_energy": loss_e, "loss_recon": recon, "loss_kl": kl, "loss_latent": latent,
                "energy_term": fake_term, "loss_generator": loss_g}

    @torch.no_grad()
    def sample(self, x, zs, noises):
        for k in reversed(range(self.diffusion.steps)):
            t = torch.full((x.shape[0],), k, device=x.device)
            with self.autocast():
                guess = self.generator(x, zs[k], t)
            x = self.diffusion.posterior_sample(guess, x, t, noises[k])
        return x

    @torch.no_grad()
    def score(self, x, t):
        with self.autocast():
            return self.energy(x, t)


def settings_of(meta):
    counts = {"size": "image_size", "channels": "num_channels_dae", "blocks": "num_res_blocks",
              "energy_blocks": "num_res_blocks_E", "latent": "nz", "latent_width": "z_emb_dim",
              "latent_layers": "n_mlp", "encoder_width": "encoder_width",
              "encoder_time": "t_emb_dim", "steps": "num_timesteps"}
    numbers = ("dropout", "beta_min", "beta_max", "gamma", "latent_weight", "lr")
    return Settings(multipliers=tuple(json.loads(meta["ch_mult"])),
                    attention=tuple(json.loads(meta["attn_resolutions"])),
                    fir=meta["fir"] == "true", large_encoder=meta["encoder"] == "large",
                    recovery=meta["time_schedule"] == "recovery", recon=meta["recon"],
                    importance=json.loads(meta["importance"]),
                    **{name: int(meta[key]) for name, key in counts.items()},
                    **{name: float(meta[name]) for name in numbers})


def sampled(flat, wanted):
    """Entries at linspace(0, n - 1, count), cut to integers. Where that meets an integer, rounding
    may have put it just below: there the entry before counts too, if it is nearer."""
    place = torch.arange(len(wanted)) * (len(flat) - 1)
    at = place // (len(wanted) - 1)
    before = at - ((place % (len(wanted) - 1) == 0) & (at > 0)).long()
    nearer = (flat[before] - wanted).abs() < (flat[at] - wanted).abs()
    return flat[torch.where(nearer, before, at)]


def check(path, arguments):
    golden, meta = measure.read_safetensors(path)
    device = arguments.device
    game = Game(settings_of(meta), device, torch.float64, compiled=arguments.compile)
    parameters = {}
    for network, module in game.networks.items():
        # The file lists them in the order in which they are made here.
        names = [name[7:] for name in golden if name.startswith(f"weight.{network}.")]
        assert len(names) == len(list(module.parameters())), network
        parameters.update(zip(names, module.parameters()))
    for name, parameter in parameters.items():
        assert parameter.shape == golden[f"weight.{name}"].shape, name
        parameter.data.copy_(golden[f"weight.{name}"])
    t = golden["t"].to(device)
    noise = [golden[f"noise.0.{k}"].to(device)
             for k in ("eps_t", "eps_tp1", "z", "eps_post", "eps_enc")]
    out = game.step(golden["x0"].to(device), t, *noise)
    out["logq_fwd_real"] = game.diffusion.log_q(out["x_tp1"], out["x_t"], t)

    errors = {"losses": [], "outputs": [], "gradients": [], "weights after": []}
    for key, wanted in golden.items():
        kind, _, name = key[4:].partition(".")
        if not key.startswith("out."):
            continue
        if kind == "after":
            errors["weights after"].append(measure.difference(parameters[name], wanted, least=1.0))
        elif kind == "grad":
            errors["gradients"].append(measure.difference(parameters[name].grad, wanted))
        elif kind == "gradnorm":
            errors["gradients"].append(measure.difference(parameters[name].grad.norm(), wanted))
        elif kind == "gradsample":
            flat = parameters[name].grad.flatten().cpu()
            least = 0.01 * flat.abs().max().item()
            errors["gradients"].append(measure.difference(sampled(flat, wanted), wanted, least))
        else:
            group = "losses" if wanted.dim() == 0 else "outputs"
            errors[group].append(measure.difference(out[kind], wanted))
    return {kind: measure.worst(all_) for kind, all_ in errors.items() if all_}


def prepare(arguments):
    preset = PRESETS[arguments.preset]
    settings = dataclasses.replace(preset, channels=arguments.channels or preset.channels,
                                   size=arguments.size or preset.size)
    device, n, size = arguments.device, arguments.batch, settings.size
    layout = torch.channels_last if arguments.channels_last else torch.contiguous_format
    game = Game(settings, device, bf16=arguments.precision == "bf16", memory_format=layout,
                compiled=arguments.compile)
    counts = {name: sum(p.numel() for p in network.parameters())
              for name, network in game.networks.items()}
    if settings == preset and arguments.preset in PARAMETERS:
        assert counts == PARAMETERS[arguments.preset], counts
    for network in game.networks.values():
        network.train(arguments.what == "step")
    x0 = torch.rand(n, 3, size, size, device=device).to(memory_format=layout) * 2 - 1

    def latent():
        return torch.randn(n, settings.latent, device=device)

    def step():
        t = torch.randint(0, settings.steps, (n,), device=device)
        game.step(x0, t, torch.randn_like(x0), torch.randn_like(x0), latent(),
                  torch.randn_like(x0), latent())

    def sample():
        game.sample(torch.randn_like(x0), [latent() for _ in range(settings.steps)],
                    [torch.randn_like(x0) for _ in range(settings.steps)])

    def score():
        game.score(x0, torch.zeros(n, dtype=torch.long, device=device))

    once = {"step": step, "sample": sample, "score": score}[arguments.what]
    passes = {"step": PASSES, "sample": {"generator": settings.steps}, "score": {"energy": 1}}
    return measure.Work(once, game.networks, passes[arguments.what])


if __name__ == "__main__":
    parser = measure.parser_of(__doc__)
    parser.add_argument("--what", choices=("step", "sample", "score"), default="step")
    parser.add_argument("--preset", choices=PRESETS, default="cifar10")
    parser.add_argument("--channels", type=int, help="instead of the preset's")
    parser.add_argument("--size", type=int, help="of images, instead of the preset's")
    measure.run(parser.parse_args(), check, prepare)
