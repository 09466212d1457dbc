"""All models of ``transformers`` 5 here that the installed version has, by name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version

from support.public.transformers5.heads import HEADS
from support.public.transformers5.images import IMAGES
from support.public.transformers5.llamas import LLAMAS
from support.public.transformers5.recipe import Recipe
from support.public.transformers5.series import SERIES

HAVE_5 = int(version("transformers").partition(".")[0]) >= 5

RECENT: Mapping[str, Recipe] = {
    name: recipe
    for name, recipe in {**HEADS, **LLAMAS, **IMAGES, **SERIES}.items()
    if HAVE_5 and recipe.exists
}
"""Empty before version 5, which has other configurations of positions and refuses LLaVA."""
