"""The commands, by name."""

from __future__ import annotations

COMMANDS = {
    "optimize": "Find the fastest plan to train a model on a machine",
    "compare": "Compare the plans of several planners",
    "generate": "Generate and prove the rule library",
    "verify": "Prove or refute rules",
    "recheck": "Check certificates of proofs with Z3 and cvc5",
    "audit": "Check that a plan follows from its model by proved rules",
    "simulate": "Predict the time and memory of a step, with a timeline",
    "explain": "Say why operators of a plan are placed as they are",
    "diff": "Say how two plans of a model differ",
    "report": "Write a page about a plan for a browser",
    "profile": "Measure this machine for the cost model",
    "run": "Train by a plan",
    "export": "Write the weights of a checkpoint as a plain state dict",
}
"""Each command with its help; its module is `unity.<command>`, which holds a typer `app`."""
