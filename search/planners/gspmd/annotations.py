"""Annotations: a mesh with names, and shardings of tensors as users state them.

``data=4,model=8`` names runs of the mesh axes of a machine, outermost first. ``-,data,model``
lists, for each dimension of a tensor, the named axes along which it is sharded: ``-`` for none,
``?`` for a dimension that propagation may shard, ``data+model`` for two axes, the outer one first
(GSPMD, section 3.1, and the partial specification of section 3.5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from math import prod

from pcg.errors import InputError
from pcg.graph.graph import Graph, Value
from pcg.plan.text import node_names

MESH, SHARD = "--mesh", "--shard"
NEAR = 4
"""The most similar names that are proposed in place of a wrong one."""
MOST_DEVICES = 1 << 20


@dataclass(frozen=True)
class NamedMesh:
    """Named axes, outermost first. ``sizes``: devices along each; ``runs``: the prime mesh axes of
    each, as (first, after the last)."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    runs: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class TensorAnnotation:
    """The sharding of a tensor as annotated. For each dimension: the numbers of the named axes
    along which it is sharded, or None if propagation may shard it."""

    dims: tuple[tuple[int, ...] | None, ...]

    @property
    def axes(self) -> Mapping[int, int]:
        """The dimension of each named axis that is used."""
        return {axis: dim for dim, own in enumerate(self.dims) for axis in own or ()}

    @property
    def open(self) -> frozenset[int]:
        """The dimensions that propagation may shard."""
        return frozenset(dim for dim, own in enumerate(self.dims) if own is None)


def parse_mesh(text: str, primes: Sequence[int]) -> NamedMesh:
    """Parse named axes such as ``data=4,model=8``. ``primes``: the lengths of the mesh axes of a
    machine, outermost first. Raises InputError."""
    names: list[str] = []
    sizes: list[int] = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        name, equals, size = word.partition("=")
        if not (equals and name.isidentifier() and size.isascii() and size.isdigit()):
            raise InputError(MESH, f"{word}, expected NAME=DEVICES such as data=4")
        if name in names:
            raise InputError(MESH, f"{name} is given twice")
        if len(size) > 7 or not 1 <= int(size) <= MOST_DEVICES:
            raise InputError(MESH, f"{word}, expected 1 to {MOST_DEVICES} devices")
        names.append(name)
        sizes.append(int(size))
    devices = prod(primes)
    if prod(sizes) != devices:
        raise InputError(MESH, f"{prod(sizes)} devices, expected {devices} as the machine has")
    return NamedMesh(tuple(names), tuple(sizes), _runs(names, sizes, primes))


def _runs(
    names: Sequence[str], sizes: Sequence[int], primes: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    runs: list[tuple[int, int]] = []
    first = 0
    for name, size in zip(names, sizes, strict=True):
        after = first
        while prod(primes[first:after]) < size:
            after += 1
        if prod(primes[first:after]) != size:
            known = " x ".join(map(str, primes))
            problem = f"{name}={size}, expected a product of neighbours in {known}, the machine's"
            raise InputError(MESH, f"{problem} mesh axes from the outermost on")
        runs.append((first, after))
        first = after
    return tuple(runs)


def parse_annotation(
    text: str, shape: Sequence[int], mesh: NamedMesh, where: str
) -> TensorAnnotation:
    """Parse the annotation of a tensor, such as ``data,-,?``. ``where``: the place for messages.
    Raises InputError for unknown or repeated axes, and for sizes that do not divide."""
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    if len(words) != len(shape):
        problem = f"{len(words)} dimensions for a tensor of {list(shape)}"
        raise InputError(where, f"{problem}, expected {len(shape)}, each an axis, - or ?")
    dims = tuple(_entry(word, mesh, where) for word in words)
    used = [axis for own in dims for axis in own or ()]
    for axis in used:
        if used.count(axis) > 1:
            raise InputError(where, f"{mesh.names[axis]} is used twice")
    for dim, (size, own) in enumerate(zip(shape, dims, strict=True)):
        parts = prod(mesh.sizes[axis] for axis in own or ())
        if size % parts:
            problem = f"{words[dim]} cuts dimension {dim} in {parts} parts"
            raise InputError(where, f"{problem}, expected a divisor of its size {size}")
    return TensorAnnotation(dims)


def _entry(word: str, mesh: NamedMesh, where: str) -> tuple[int, ...] | None:
    if word in ("-", "?"):
        return None if word == "?" else ()
    axes: list[int] = []
    for name in (part.strip() for part in word.split("+")):
        if name not in mesh.names:
            expected = ", ".join(mesh.names) or "a named axis"
            raise InputError(where, f"no axis {name!r}, expected {expected}, - or ?")
        axes.append(mesh.names.index(name))
    if axes != sorted(axes):
        ordered = "+".join(mesh.names[axis] for axis in sorted(axes))
        raise InputError(where, f"{word}, expected the outer axis first: {ordered}")
    return tuple(axes)


def annotated(
    graph: Graph, shards: Sequence[str], mesh: NamedMesh
) -> Mapping[Value, TensorAnnotation]:
    """The annotations of a graph's tensors, each given as ``NAME=data,-``. NAME is the name of a
    weight or an input, with dots or as in the graph, or of an operator's result; ``*`` stands for
    any text. Raises InputError."""
    names = {
        name: node.value(port)
        for node, own in node_names(graph).items()
        for port, name in enumerate(own)
    }
    annotations: dict[Value, TensorAnnotation] = {}
    for shard in shards:
        name, equals, text = shard.partition("=")
        if not equals:
            raise InputError(SHARD, f"{shard}, expected NAME=AXIS,-,AXIS")
        for known in _matching(name.strip(), names):
            value, where = names[known], f"{SHARD} {known}"
            if value in annotations:
                raise InputError(where, "is annotated twice")
            annotations[value] = parse_annotation(text, value.type.shape, mesh, where)
    return annotations


def _matching(name: str, names: Mapping[str, Value]) -> list[str]:
    for wanted in (name, name.replace(".", "_")):
        matching = [known for known in names if fnmatchcase(known, wanted)]
        if matching:
            return matching
    near = get_close_matches(name.replace(".", "_"), names, NEAR, 0.4)
    hint = f"near it are {', '.join(near)}" if near else f"the graph has {len(names)} tensors"
    raise InputError(SHARD, f"{name}: no such tensor in the model ({hint})")


def sharding_text(axes: Mapping[int, int], rank: int, mesh: NamedMesh) -> str:
    """A sharding in the notation of annotations. ``axes``: for each named axis the dimension that
    it shards, or PARTIAL."""
    words = [
        "+".join(mesh.names[axis] for axis in sorted(axes) if axes[axis] == dim) or "-"
        for dim in range(rank)
    ]
    sums = [mesh.names[axis] for axis in sorted(axes) if axes[axis] < 0]
    return f"[{','.join(words)}]" + (f" in partial sums over {'+'.join(sums)}" if sums else "")
