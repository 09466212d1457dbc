"""Small models of torch alone, as people write them, with their own losses."""

from __future__ import annotations

from support.public.by_hand.classifiers import CLASSIFIERS
from support.public.by_hand.contrastive import CONTRASTIVE
from support.public.by_hand.control import CONTROL
from support.public.by_hand.decoders import DECODERS
from support.public.by_hand.generative import GENERATIVE
from support.public.by_hand.geometry import GEOMETRY
from support.public.by_hand.inputs import Maker
from support.public.by_hand.recommenders import RECOMMENDERS
from support.public.by_hand.sequences import SEQUENCES
from support.public.by_hand.series import SERIES
from support.public.by_hand.vision import VISION_BY_HAND

BY_HAND: dict[str, Maker] = {
    **SEQUENCES,
    **DECODERS,
    **SERIES,
    **GENERATIVE,
    **CONTRASTIVE,
    **RECOMMENDERS,
    **GEOMETRY,
    **CONTROL,
    **VISION_BY_HAND,
    **CLASSIFIERS,
}
"""The models by name."""
