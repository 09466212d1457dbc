"""Models that make images and samples: autoencoders, adversaries, diffusion and flows."""

from __future__ import annotations

import torch
from support.public.by_hand.inputs import Maker, images, rows
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, Normal, kl_divergence
from torch.nn import functional as f

STEPS = 100
"""Steps of noise in the diffusion model."""


class Vae(nn.Module):
    """The variational autoencoder, with random numbers of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 32), nn.ReLU())
        self.mean, self.spread = nn.Linear(32, 8), nn.Linear(32, 8)
        self.decoder = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(-1, 64)
        h = self.encoder(x)
        mean, log_variance = self.mean(h), self.spread(h)
        deviation = torch.exp(0.5 * log_variance)
        made = self.decoder(mean + torch.randn_like(deviation) * deviation)
        distance = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
        return f.binary_cross_entropy(made, x, reduction="sum") + distance


class DistributionVae(Vae):
    """The same by ``torch.distributions``."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(-1, 64)
        h = self.encoder(x)
        drawn = Normal(self.mean(h), f.softplus(self.spread(h)))
        distance = kl_divergence(drawn, Normal(0.0, 1.0)).sum(1).mean()
        return f.mse_loss(self.decoder(drawn.rsample()), x) + distance


class VqVae(nn.Module):
    """An autoencoder whose codes are the nearest rows of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Conv2d(3, 8, 4, 2, 1), nn.ConvTranspose2d(8, 3, 4, 2, 1)
        self.codes = nn.Embedding(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        states = self.encoder(x).permute(0, 2, 3, 1).contiguous()
        flat, table = states.view(-1, 8), self.codes.weight
        far = (flat**2).sum(1, keepdim=True) + (table**2).sum(1) - 2 * flat @ table.t()
        near = self.codes(far.argmin(1)).view(states.shape)
        loss = 0.25 * f.mse_loss(near.detach(), states) + f.mse_loss(near, states.detach())
        straight = states + (near - states).detach()
        return f.mse_loss(self.decoder(straight.permute(0, 3, 1, 2)), x) + loss


class Adversaries(nn.Module):
    """A generator of images of 8 x 8 pixels and a discriminator (DCGAN)."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.ConvTranspose2d(16, 16, 4, 1, 0, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(True),
            nn.ConvTranspose2d(16, 3, 4, 2, 1),
            nn.Tanh(),
        )
        self.discriminator = nn.Sequential(
            nn.Conv2d(3, 16, 4, 2, 1),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(16, 16, 4, 2, 1, bias=False),
            nn.BatchNorm2d(16),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(16, 1, 2),
        )


class Discriminator(Adversaries):
    """The step of the discriminator, with images of the generator from noise."""

    def __init__(self) -> None:
        super().__init__()
        self.generator.requires_grad_(False)

    def forward(self, real: Tensor) -> Tensor:
        noise = torch.randn(real.size(0), 16, 1, 1, device=real.device)
        made = self.discriminator(self.generator(noise).detach()).view(-1)
        given = self.discriminator(real).view(-1)
        loss = f.binary_cross_entropy_with_logits
        return loss(given, torch.ones_like(given)) + loss(made, torch.zeros_like(made))


class Generator(Adversaries):
    """The step of the generator."""

    def __init__(self) -> None:
        super().__init__()
        self.discriminator.requires_grad_(False)

    def forward(self, noise: Tensor) -> Tensor:
        made = self.generator(noise.view(-1, 16, 1, 1))
        return f.softplus(-self.discriminator(made).view(-1)).mean()


class Diffusion(nn.Module):
    """The noise of an image at a random step (DDPM)."""

    kept: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.cumprod(1 - torch.linspace(1e-4, 0.02, STEPS), 0))
        self.steps, self.norm = nn.Embedding(STEPS, 8), nn.GroupNorm(2, 8)
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        step, noise = torch.randint(0, STEPS, (x.shape[0],)), torch.randn_like(x)
        kept = self.kept[step].view(-1, 1, 1, 1)
        noisy = kept.sqrt() * x + (1 - kept).sqrt() * noise
        h = self.first(noisy) + self.steps(step)[:, :, None, None]
        return f.mse_loss(self.last(f.silu(self.norm(h))), noise)


class CouplingFlow(nn.Module):
    """Affine couplings of two halves of a sample, from data to normal numbers (RealNVP)."""

    def __init__(self) -> None:
        super().__init__()
        self.couplings = nn.ModuleList(
            [nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 8)) for _ in range(3)]
        )

    def forward(self, x: Tensor) -> Tensor:
        determinant = torch.zeros(len(x))
        for number, coupling in enumerate(self.couplings):
            fixed, moved = x.chunk(2, 1)
            if number % 2:
                fixed, moved = moved, fixed
            scale, shift = coupling(fixed).chunk(2, 1)
            scale = torch.tanh(scale)
            determinant = determinant + scale.sum(1)
            x = torch.cat([fixed, moved * scale.exp() + shift], 1)
        normal = MultivariateNormal(torch.zeros(8), torch.eye(8))
        return -(normal.log_prob(x) + determinant).mean()


class Autoencoder(nn.Module):
    """Convolutions and pooling down, transposed convolutions up."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
        )
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(16, 8, 3, 2, 1, output_padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(8, 3, 2, 2),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return f.mse_loss(self.decoder(self.encoder(x)), x)


class Unpooling(nn.Module):
    """An autoencoder that puts the greatest elements back where they were."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)
        self.pool, self.unpool = nn.MaxPool2d(2, return_indices=True), nn.MaxUnpool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        greatest, places = self.pool(self.first(x))
        return f.l1_loss(self.last(self.unpool(greatest, places)), x)


GENERATIVE: dict[str, Maker] = {
    "vae": lambda: (Vae(), (rows(1, 8, 8).sigmoid(),)),
    "vae-rsample": lambda: (DistributionVae(), (rows(1, 8, 8).sigmoid(),)),
    "vq-vae": lambda: (VqVae(), (images(),)),
    "gan-discriminator": lambda: (Discriminator(), (images(8),)),
    "gan-generator": lambda: (Generator(), (rows(16),)),
    "diffusion": lambda: (Diffusion(), (images(),)),
    "coupling-flow": lambda: (CouplingFlow(), (rows(8),)),
    "autoencoder": lambda: (Autoencoder(), (images(),)),
    "unpooling": lambda: (Unpooling(), (images(),)),
}
