"""Train public models on four processes, by plans of several kinds, and compare with torch alone.

    PYTHONPATH=.:tests python tests/benchmarks/public/training.py [--attention eager]
        [--ways data,tensor] [--optimizer sgd] [NAME ...]

Prints the differences of losses, gradients of each step and weights after three steps in double
precision. The status is 1 if a difference is more than ``NEAR``, or a plan is not cut.
"""

from __future__ import annotations

import argparse
import sys
import warnings

import torch
from support.public.every import named, public
from support.public.plans import WAYS, is_cut, plan_of
from support.public.training import OPTIMIZERS, by_plan, difference, eagerly, subject_of

from pcg.errors import InputError, NegativeAnswer

NEAR = 1e-9


def main() -> None:
    """One line for each model and kind of plan."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="models, packages or PACKAGE/MODEL")
    parser.add_argument("--attention", choices=("sdpa", "eager"), default="sdpa")
    parser.add_argument("--ways", default="data,zero,tensor,joint,pipeline")
    parser.add_argument("--optimizer", choices=tuple(OPTIMIZERS), default="adam")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print("| model | plan | largest difference |\n|---|---|---|", flush=True)
    passes = [trained(name, given) for name in named(given.names)]
    sys.exit(not all(passes))


def trained(name: str, given: argparse.Namespace) -> bool:
    """Whether all plans of a model train as torch does."""
    try:
        subject = subject_of(public(name, given.attention))
    except InputError as error:
        print(f"| {name} | refused | {error} |", flush=True)
        return False
    alone, passes = eagerly(subject, given.optimizer), True
    for way in given.ways.split(","):
        assert way in WAYS, f"{way}: expected one of {', '.join(WAYS)}"
        try:
            plan = plan_of(subject, way)
        except NegativeAnswer as error:
            print(f"| {name} | {way} | no plan: {error} |", flush=True)
            continue
        error = difference(by_plan(subject, plan, given.optimizer), alone)
        where = "" if is_cut(plan) else ", on one device"
        print(f"| {name} | {way}{where} | {error:.1e} |", flush=True)
        # Not "error > NEAR": a NaN has to fail.
        passes &= error <= NEAR and is_cut(plan)
    return passes


if __name__ == "__main__":
    main()
