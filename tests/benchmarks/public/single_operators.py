"""Print the outcome of each of torch's operators, as a small model of its own, and the counts.

PYTHONPATH=.:tests python tests/benchmarks/public/single_operators.py [NAME ...]
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter

import torch
from support.public.operators import operators, outcome


def main() -> None:
    """A line for each operator, or for those that are named, and the counts."""
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    for name, module, most in operators():
        if len(sys.argv) > 1 and name not in sys.argv[1:]:
            continue
        torch.manual_seed(0)
        verdict = outcome(module, most)
        counts[verdict.kind] += 1
        print(f"{verdict.kind}: {name}  {' '.join(verdict.detail.split())}"[:300], flush=True)
    print(f"{sum(counts.values())} operators:", dict(counts.most_common()))


if __name__ == "__main__":
    main()
