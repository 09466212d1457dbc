"""From a PyTorch module and example inputs to a parallel computation graph.

``torch.export`` writes the module down as a program of ATen operators. A table (``aten.table``)
maps each of them to operators of the graph. No value is computed, so parameters may be on the meta
device.
"""

from __future__ import annotations

from pcg.capture.convert import Captured, CapturedWeight, capture

__all__ = ["Captured", "CapturedWeight", "capture"]
