"""Layers that can be captured: mixtures of experts."""

from __future__ import annotations

from pcg.mixtures.blocks import limit_capacity
from unity.nn.experts import Experts, MixtureOfExperts
from unity.nn.losses import load_balancing_loss, router_z_loss
from unity.nn.routing import Router, Routing

__all__ = [
    "Experts",
    "MixtureOfExperts",
    "Router",
    "Routing",
    "limit_capacity",
    "load_balancing_loss",
    "router_z_loss",
]
