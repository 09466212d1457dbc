"""Rays and clouds of points."""

from __future__ import annotations

import torch
from support.public.by_hand.inputs import Maker, ids, rows
from torch import Tensor, nn
from torch.nn import functional as f

SHAPES = 4


class RadianceField(nn.Module):
    """The colour of a ray by 16 places along it (NeRF)."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, origin: Tensor, direction: Tensor, colour: Tensor) -> Tensor:
        along = torch.arange(16) / 16
        places = origin[:, None] + direction[:, None] * along[None, :, None]
        angles = (places[..., None] * 2.0 ** torch.arange(4)).flatten(2)
        made = self.network(torch.cat([angles.sin(), angles.cos()], -1))
        opacity = 1 - torch.exp(-f.relu(made[..., 3]) / 16)
        clear = torch.cat([torch.ones_like(opacity[:, :1]), 1 - opacity + 1e-10], 1)
        weights = opacity * torch.cumprod(clear, 1)[:, :-1]
        mixed = (weights[..., None] * torch.sigmoid(made[..., :3])).sum(1)
        return f.mse_loss(mixed, colour)


class PointNet(nn.Module):
    """The class of a cloud after a learned linear map that stays near a rotation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16)
        self.map, self.head = nn.Linear(16, 9), nn.Linear(16, SHAPES)

    def greatest(self, points: Tensor) -> Tensor:
        return torch.max(f.relu(self.norm(self.conv(points))), 2)[0]

    def forward(self, points: Tensor, labels: Tensor) -> Tensor:
        unit = torch.eye(3)
        start = unit.view(1, 9).repeat(points.size(0), 1)
        maps = (self.map(self.greatest(points)) + start).view(-1, 3, 3)
        points = torch.bmm(points.transpose(2, 1), maps).transpose(2, 1)
        loss = f.nll_loss(f.log_softmax(self.head(self.greatest(points)), 1), labels)
        from_rotation = torch.bmm(maps, maps.transpose(2, 1)) - unit
        return loss + 0.001 * torch.mean(torch.norm(from_rotation, dim=(1, 2)))


class EdgeConvolution(nn.Module):
    """The class of a cloud by differences to the four nearest points (DGCNN)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(6, 16, 1), nn.Linear(16, SHAPES)

    def forward(self, points: Tensor, labels: Tensor) -> Tensor:
        samples, width, count = points.shape
        squares = torch.sum(points**2, 1, keepdim=True)
        products = torch.matmul(points.transpose(2, 1), points)
        near = (2 * products - squares - squares.transpose(2, 1)).topk(4, -1)[1]
        places = (near + torch.arange(samples).view(-1, 1, 1) * count).view(-1)
        rows = points.transpose(2, 1).contiguous()
        neighbours = rows.view(samples * count, width)[places].view(samples, count, 4, width)
        centres = rows.view(samples, count, 1, width).repeat(1, 1, 4, 1)
        edges = torch.cat((neighbours - centres, centres), 3).permute(0, 3, 1, 2)
        return f.cross_entropy(self.head(self.conv(edges).max(-1)[0].max(-1)[0]), labels)


GEOMETRY: dict[str, Maker] = {
    "nerf": lambda: (RadianceField(), (rows(3), rows(3), rows(3))),
    "pointnet": lambda: (PointNet(), (rows(3, 32), ids(SHAPES))),
    "dgcnn": lambda: (EdgeConvolution(), (rows(3, 16), ids(SHAPES))),
}
