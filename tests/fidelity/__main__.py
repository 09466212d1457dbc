"""Print published steps with their predictions: ``make fidelity``.

    python -m fidelity [NAME ...]

A NAME is a part of the name of a run or a point.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from statistics import fmean
from time import process_time

from fidelity.data import points
from fidelity.price import Priced, of_two_recomputations, priced


def main(names: Sequence[str]) -> None:
    """Price the points whose names are given, or all points."""
    every: list[Priced] = []
    for point in points():
        if names and not any(name in f"{point.run} {point.name}" for name in names):
            continue
        begin = process_time()
        every.append(one := priced(point))
        print(
            f"{point.run:15} {point.name:9} {point.gpus:5} GPUs"
            f" {point.seconds:9.3f} s published {one.seconds:9.3f} predicted {one.error:+7.1%}"
            f" {_memory(one):>26} {'calibrates' if point.calibrates else 'held out':10}"
            f" {process_time() - begin:5.0f} s CPU",
            flush=True,
        )
    for run in dict.fromkeys(one.point.run for one in every):
        for label, calibrates in (("held out", False), ("calibrating", True)):
            own = [p for p in every if p.point.run == run and p.point.calibrates == calibrates]
            if own:
                mean, signed = fmean(abs(p.error) for p in own), fmean(p.error for p in own)
                print(
                    f"{run:15} {label:11} {len(own):3} points {mean:6.1%} mean {signed:+6.1%} bias"
                )
    for full, selective in of_two_recomputations(every):
        print(
            f"{full.point.run:15} {full.point.name:9} full to selective recomputation"
            f" {full.point.seconds / selective.point.seconds:6.3f} published"
            f" {full.seconds / selective.seconds:6.3f} predicted"
        )
    refused = [one for one in every if one.is_refused]
    for one in refused:
        print(f"{one.point.run:15} {one.point.name:9} refused: {_memory(one)}")
    print(f"{len(refused)} of {len(every)} plans that ran are refused for memory")


def _memory(one: Priced) -> str:
    """The predicted memory and, if a figure is published, its error."""
    error = one.memory_error
    told = "" if error is None else f", {error:+.1%} of published"
    reserved = "" if one.reserved is None else f", {one.reserved / 1e9:.1f} reserved"
    return f"{one.memory / 1e9:.1f} GB{reserved}{told}"


if __name__ == "__main__":
    main(sys.argv[1:])
