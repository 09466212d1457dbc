"""Undecided candidates are listed in the library and its README, with a reason in words."""

from __future__ import annotations

from support.rules.few_rules import few_rules

from substitutions.browse.companions import companions
from substitutions.generate.undecided import EXPLANATIONS, OTHER, UndecidedCandidate
from substitutions.rules.store import (
    ProofFile,
    UndecidedFile,
    library_of,
    library_text,
    load_library,
    rule_file,
    save_library,
)

PROOF = ProofFile(side_conditions=1, digest="0" * 16, degrees={})
RULES = [rule_file(rule, PROOF) for rule in few_rules()]


def undecided(reason: str) -> UndecidedFile:
    left = "slice(x, axis=0, start=start, size=size2)"
    return UndecidedFile(inputs={"x": 1}, left=left, right="x", reason=reason)


def test_each_reason_has_its_words():
    for part, words in EXPLANATIONS.items():
        assert UndecidedCandidate.of(undecided(f"max#0: {part}")).explanation == words
    assert UndecidedCandidate.of(undecided("anything else")).explanation == OTHER


def test_readme_lists_undecided_candidates(tmp_path):
    content = library_of(
        RULES, max_ops=2, undecided=[undecided("summed index a is not determined")]
    )
    readme = companions(content)["README.md"]
    assert "    slice(x, axis=0, start, size=size2) = x\n" in readme
    assert "The prover says: summed index a is not determined. An index that is summed" in readme
    save_library(content, tmp_path / "rules.json")
    assert len(load_library(tmp_path / "rules.json").rules) == len(RULES)


def test_library_without_undecided_candidates_states_it():
    content = library_of(RULES, max_ops=2)
    assert "Every candidate is proved or refuted." in companions(content)["README.md"]
    assert "undecided" not in library_text(content)
