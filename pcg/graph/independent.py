"""Along which dimensions torch's functions are the same for each slice: one table.
"""

from __future__ import annotations

from collections.abc import Sequence

from pcg.graph.slices import Axis
from pcg.graph.torch_calls import Format, TorchCall


def independent(
    call: TorchCall, reads: Sequence[Format], writes: Sequence[Format]
) -> tuple[Axis, ...]:
    if call.name in ("cumsum", "cumprod", "topk", "sort"):
        d = call.bound(range(len(reads)))["dim"] % len(reads[0].shape)
        return tuple(Axis((i,), (i,) * len(writes)) for i in range(len(reads[0].shape)) if i != d)
    return ()
