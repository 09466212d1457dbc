"""Layers to write models with that can be captured: mixtures of experts."""

from __future__ import annotations

from unity.nn.experts import Experts, MixtureOfExperts
from unity.nn.losses import load_balancing_loss, router_z_loss
from unity.nn.routing import Router, Routing

__all__ = [
    "Experts",
    "MixtureOfExperts",
    "Router",
    "Routing",
    "load_balancing_loss",
    "router_z_loss",
]
