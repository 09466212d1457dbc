"""Changes that an adversary makes to certificates, each with the true certificate that it starts
from and the expected message."""

from __future__ import annotations

from collections.abc import Callable

from support.rules.forging import Content


def put(key: str, value: object) -> Callable[[Content], None]:
    return lambda content: content.update({key: value})


def equal(symbol: str) -> Callable[[Content], None]:
    return put("equal", [[[[["|x.0|"], 1]], [[[symbol], 1]]]])


def operator(**fields: object) -> Callable[[Content], None]:
    """Change the last of the operators that compute."""
    return lambda content: content["operators"][-1].update(fields)


def first_operator(**fields: object) -> Callable[[Content], None]:
    return lambda content: content["operators"][0].update(fields)


def text(old: str, new: str, side: str = "left") -> Callable[[Content], None]:
    def change(content: Content) -> None:
        assert old in content[side]
        content[side] = content[side].replace(old, new)

    return change


def both(old: str, new: str) -> Callable[[Content], None]:
    def change(content: Content) -> None:
        for side in ("left", "right"):
            text(old, new, side)(content)

    return change


def witness(part: str, **fields: object) -> Callable[[Content], None]:
    return lambda content: content["witness"][part].update(fields)


def theorem(**fields: object) -> Callable[[Content], None]:
    return lambda content: content["theorems"][0].update(fields)


def again(key: str) -> Callable[[Content], None]:
    return lambda content: content[key].append(content[key][0])


def less(key: str) -> Callable[[Content], None]:
    return lambda content: content[key].pop() and None


INJECTION = "~| Int)\n(assert false)\n(exit)\n;"
BAD: dict[str, tuple[str, Callable[[Content], object], str]] = {
    # Symbols
    "commands in a symbol": ("sum", equal(INJECTION), "equal"),
    "commands in a size": ("sum", equal("|x.0| Int)(assert false)(exit);|"), "equal"),
    "a bar in a symbol": ("sum", equal("a|b"), "equal"),
    "a backslash in a symbol": ("sum", equal("a\\b"), "equal"),
    "a line break in a symbol": ("sum", equal("a\n"), "equal"),
    "no symbol": ("sum", equal(""), "equal"),
    "a space in a symbol": ("sum", equal("size x.0"), "equal"),
    "a NUL in a symbol": ("sum", equal("a\0"), "control character"),
    "a letter that looks like another": ("sum", equal("\u0445"), "equal"),
    "a symbol of the core": ("sum", equal("quotient 1"), "equal"),
    "an index of the core": ("sum", equal("o0"), "o0 is in no attribute"),
    "the size of another input": ("sum", equal("|z.0|"), "the size of no input"),
    "a size beyond the rank": ("sum", equal("|x.7|"), "the size of no input"),
    "a size in other digits": ("sum", equal("|x.00|"), "the size of no input"),
    "a size of its own": ("sum", equal("|N|"), "the size of no input"),
    "a symbol of nothing": ("sum", equal("q"), "q is in no attribute"),
    "a size in an attribute": ("part", both("start=a", "start=|z.0|"), "the size of no input"),
    "a symbol of 100,000 letters": ("sum", equal("a" * 100_000), "equal"),
    "a coefficient of 10**40": ("sum", put("equal", [[[[["|x.0|"], 10**40]], []]]), "equal"),
    "20,000 terms": ("sum", put("equal", [[[[[f"a{i}"], 1] for i in range(20_000)], []]]), "equal"),
    "a size of 0": ("sum", put("equal", [[[[["|x.0|"], 1]], []]]), ""),
    "sizes that cannot be": (
        "sum",
        put("equal", [[[[["|x.0|"], 1]], [[["|x.0|"], 1], [[], 1]]]]),
        "",
    ),
    # Definitions
    "commands in an operator's name": ("sum", operator(name=INJECTION), "operators"),
    "commands in a size attribute": ("part", operator(sizes=["start", INJECTION]), "operators"),
    "commands in a real attribute": ("scale", operator(reals=[INJECTION]), "operators"),
    "a kind of move that there is not": ("cut", first_operator(parallel="bogus"), "parallel"),
    "an operator that moves as reduce does": (
        "sum",
        operator(parallel="reduce"),
        "defines add anew",
    ),
    "add defined anew": (
        "sum",
        operator(equation="out[i...] = x[i...] * y[i...]"),
        "defines add anew",
    ),
    "add that does not commute": ("sum", operator(commutative=False), "defines add anew"),
    "a definition twice": ("sum", again("operators"), "defines add twice"),
    "a definition left out": ("cut", less("operators"), ""),
    "a definition too many": (
        "sum",
        lambda c: c["operators"].append({**c["operators"][0], "name": "mine"}),
        "other operators than it uses",
    ),
    "an equation without meaning": ("sum", operator(equation="out[i] = y[j]"), ""),
    "an equation nested deeply": ("sum", operator(equation="(" * 1_900), ""),
    "an equation of 10,000 letters": ("sum", operator(equation="x" * 10_000), "equation"),
    # Graphs
    "a torch function": (
        "sum",
        text("return", "opaque f = aten.relu.default(x0) : [2] float32 -> [2] float32\nreturn"),
        "without an equation",
    ),
    "a torch function behind a tab": (
        "sum",
        text("return", "\topaque\tf = aten.from_file(x0) : [2] float32 -> [2] float32\nreturn"),
        "left",
    ),
    "an input of a model": ("sum", both("x = tensor[_, _]", "x = input[2, 2]"), "another kind"),
    "a comment": ("sum", text("return", "# what it says\nreturn"), "as graphs are printed"),
    "an input with other words": ("sum", both("[_, _]", "[a, b]"), "as graphs are printed"),
    "a graph of 100,000 letters": ("sum", put("left", "x" * 100_000), "characters"),
    "a graph of 100,000 lines": ("sum", put("left", "\n" * 100_000), "lines"),
    "20,000 terms in an attribute": (
        "part",
        both("start=a", "start=" + "+".join(f"a{i}" for i in range(20_000))),
        "characters",
    ),
    "calls 10,000 deep": ("sum", put("left", "relu(" * 10_000), "characters"),
    "an escape character": ("sum", text("t0", "t\x1b[2J0"), "control character"),
    "a letter of another script": ("sum", both("x", "\u0445"), "ASCII"),
    "an input of two ranks": ("sum", text("y = tensor[_, _]", "y = tensor[_]"), ""),
    "a rank of 60": ("sum", both("x = tensor[_, _]", f"x = tensor[{', '.join('_' * 60)}]"), ""),
    "another output": ("sum", text("return t0", "return x"), ""),
    "no output": ("sum", text("return t0", "return"), ""),
    "a degree of 10**9": (
        "cut",
        text("degree=k", f"degree={10**9 + 7}", "right"),
        "degree is more",
    ),
    "a degree that is a size": ("cut", text("degree=k", "degree=|x.1|", "right"), ""),
    "a degree of 1": ("cut", text("degree=k", "degree=1", "right"), ""),
    "a start of 10**17": ("part", both("start=a", f"start={10**17}"), "start is more"),
    "a factor without end": ("scale", text("factor=c", "factor=1e999"), ""),
    # The claim
    "other conditions of types": ("cut", put("types", "0" * 24), "types is not the one"),
    "a typing that there is not": ("cut", put("typings", [4_000, 0]), "no typing number 4000"),
    "a negative typing": ("cut", put("typings", [-1, 0]), "typings"),
    "requirements left out": ("asking", put("requires", []), "states other conditions"),
    "requirements of another": ("cut", put("requires", ["x.d0 = 1"]), "requires nothing, but"),
    "whole, though it moves": ("cut", put("whole", True), "has parallel operators"),
    "an axis that is not free": ("cut", put("runs", [[["x", 1]]]), "any number of axes"),
    "an axis of nothing": ("cut", put("runs", [[["q", 0]]]), "any number of axes"),
    # The proof
    "a step left out": ("sum", less("steps"), ""),
    "a step too many": ("sum", again("steps"), "more steps than its proof needs"),
    "a step that is none": ("sum", lambda c: c["steps"].__setitem__(0, "no way"), "no way"),
    "an escape character in a step": (
        "sum",
        lambda c: c["steps"].__setitem__(0, "no\x1bway"),
        "control character",
    ),
    "100,000 steps": ("sum", put("steps", ["sorted"] * 100_000), "steps"),
    "a condition left out": ("sum", less("conditions"), "of its proof are not those"),
    "conditions of another": ("cut", put("conditions", ["0" * 24]), "of its proof are not those"),
    "a path as a condition": ("cut", put("conditions", ["../../../../etc/passwd"]), "conditions"),
    "a path as the types": ("cut", put("types", "../types"), "types"),
    "a theorem left out": ("cut", less("theorems"), "no theorem"),
    "the theorem of another": ("cut", theorem(operator="add"), "no theorem"),
    "a theorem of other conditions": ("cut", theorem(conditions=[]), "its theorem are not those"),
    "a theorem of more steps": (
        "cut",
        lambda c: again("steps")(c["theorems"][0]),
        "more steps for matmul",
    ),
    "a theorem of rank 10**9": ("cut", theorem(ranks=[10**9, 2]), "ranks"),
    # The witness
    "no witness": ("cut", put("witness", {"sizes": {}, "degrees": {}, "reals": {}}), "witness"),
    "a size of 0 in the witness": ("cut", witness("sizes", **{"|x.0|": 0}), "witness"),
    "a size of 10**9 in the witness": ("cut", witness("sizes", **{"|x.0|": 10**9}), "witness"),
    "a degree of 1 in the witness": ("cut", witness("degrees", k=1), "less than 2"),
    "a degree of 0 in the witness": ("cut", witness("degrees", **{"x.d0": 0}), "witness"),
    "a degree that does not divide": ("cut", witness("degrees", k=7), ""),
    "types that do not hold": ("cut", witness("degrees", **{"x.p": 2, "w.p": 2}), "do not hold"),
    "a size of nothing in the witness": ("cut", witness("sizes", q=1), "one too many, for q"),
    "a degree of nothing": ("cut", witness("degrees", q=2), "one too many, for q"),
    "a real of nothing": ("cut", witness("reals", q=2.0), "other real numbers"),
    "reals left out": ("scale", lambda c: c["witness"].update(reals={}), "other real numbers"),
    # The file
    "an unknown field": ("sum", put("trust", True), "unknown field"),
    "another version": ("sum", put("schema_version", 2), "schema_version"),
    "a label of 20,000 letters": ("sum", put("rule", "r" * 20_000), "rule"),
    "no label": ("sum", put("rule", ""), "rule"),
    "the label of a rule of the library": ("sum", put("rule", "r794b7f8e60"), "another rule than"),
    "a label that states something else": ("sum", put("rule", "relu(x) == x"), "another statement"),
}
