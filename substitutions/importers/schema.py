"""Reads rule files in the schema that TASO's and FlexFlow's generators write.

A file is checked completely before rules are imported: first the types of fields, by pydantic, then
operators, parameters, references and order. Each fault is an ``InputError`` that names the file and
the place, such as ``rules.json: rule[3].srcOp[1]: unknown operator OP_FOO``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from pydantic import Field

from pcg.errors import InputError
from pcg.files import FileModel, parse_json, read_text
from substitutions.importers.operators import (
    ACTIVATION,
    DESCRIPTIVE,
    NUM_DIM,
    NUM_INPUTS,
    NUM_OUTPUTS,
    OP_TYPE,
    RANGES,
    SIGNATURES,
    ForeignSignature,
    RuleSystem,
    canonical,
)

MAX_FILE_BYTES = 8 * 1024 * 1024
"""Four times the largest published file; reading more would take many seconds."""
MAX_RULES = 100_000
MAX_OPERATORS = 1_000
"""The most operators of one side of a rule."""

LOWEST_INPUT: Mapping[RuleSystem, int] = {RuleSystem.FLEXFLOW: -6, RuleSystem.TASO: -20}
"""The inputs of a rule are -1, -2, ... down to this one."""


class _TensorModel(FileModel):
    op_id: int = Field(alias="opId")
    ts_id: int = Field(alias="tsId")
    kind: str | None = Field(default=None, alias="_t")


class _ParameterModel(FileModel):
    key: str
    value: int
    kind: str | None = Field(default=None, alias="_t")


class _OperatorModel(FileModel):
    type: str
    input: tuple[_TensorModel, ...]
    para: tuple[_ParameterModel, ...]
    kind: str | None = Field(default=None, alias="_t")


class _MapModel(FileModel):
    source_op: int = Field(alias="srcOpId")
    source_ts: int = Field(alias="srcTsId")
    target_op: int = Field(alias="dstOpId")
    target_ts: int = Field(alias="dstTsId")
    kind: str | None = Field(default=None, alias="_t")


class _RuleModel(FileModel):
    name: str
    source: tuple[_OperatorModel, ...] = Field(alias="srcOp")
    target: tuple[_OperatorModel, ...] = Field(alias="dstOp")
    mapped: tuple[_MapModel, ...] = Field(alias="mappedOutput")
    kind: str | None = Field(default=None, alias="_t")


class _FileModel(FileModel):
    rule: tuple[_RuleModel, ...]
    kind: str | None = Field(default=None, alias="_t")


@dataclass(frozen=True)
class Reference:
    """An output of an operator of the same side, or, where ``op`` is negative, an input."""

    op: int
    port: int


@dataclass(frozen=True)
class ForeignOperator:
    """An operator: its name in ``SIGNATURES``, the tensors that it reads, and its parameters."""

    name: str
    inputs: tuple[Reference, ...]
    parameters: Mapping[str, int] = field(hash=False)

    @property
    def signature(self) -> ForeignSignature:
        return SIGNATURES[self.name]

    @property
    def outputs(self) -> int:
        return self.parameters.get(NUM_OUTPUTS, 2) if self.signature.splits else 1


@dataclass(frozen=True)
class ForeignSide:
    """One side of a rule. ``operators``: numbered as in the file. ``order``: the numbers, operands
    first."""

    operators: tuple[ForeignOperator, ...]
    order: tuple[int, ...]
    outputs: tuple[Reference, ...]
    """The mapped outputs, in the order of the file."""

    @property
    def inputs(self) -> frozenset[int]:
        """The inputs that some operator reads."""
        return frozenset(r.op for o in self.operators for r in o.inputs if r.op < 0)


_NOTHING = ForeignSide((), (), ())


@dataclass(frozen=True)
class ForeignRule:
    name: str
    source: RuleSystem
    left: ForeignSide
    right: ForeignSide
    meaningless: str = ""
    """Why the rule has no meaning: it mixes operators of two systems, or lacks a required
    parameter. Its sides are then empty."""

    @property
    def sides(self) -> tuple[tuple[str, ForeignSide], ...]:
        return (("left", self.left), ("right", self.right))


@dataclass(frozen=True)
class ForeignFile:
    path: str
    source: RuleSystem
    rules: tuple[ForeignRule, ...]


def read_foreign(path: str | Path) -> ForeignFile:
    """Read the rules of a file of FlexFlow's or TASO's generator.

    Raises InputError that names the file and the place that is wrong.
    """
    model = parse_json(read_text(path, "a rule file", MAX_FILE_BYTES), str(path), _FileModel)
    if len(model.rule) > MAX_RULES:
        raise InputError(str(path), f"{len(model.rule)} rules, expected at most {MAX_RULES}")
    where = str(path)
    names = [_operator_names(where, f"rule[{i}]", rule) for i, rule in enumerate(model.rule)]
    source = _source(model.rule, names)
    rules = tuple(
        _Checker(where, f"rule[{i}]", source if own is None else own, mixed).rule(rule)
        for i, rule in enumerate(model.rule)
        for own, mixed in (_own_source(names[i]),)
    )
    return ForeignFile(where, source, rules)


def _operator_names(where: str, place: str, rule: _RuleModel) -> frozenset[str]:
    """The operators of a rule, by the names in ``SIGNATURES``."""
    names: set[str] = set()
    for side, operators in (("srcOp", rule.source), ("dstOp", rule.target)):
        if len(operators) > MAX_OPERATORS:
            problem = f"{len(operators)} operators, expected at most {MAX_OPERATORS}"
            raise InputError(where, f"{place}.{side}: {problem}")
        for number, operator in enumerate(operators):
            name = canonical(operator.type)
            if name is None:
                shown = operator.type[:40]
                raise InputError(where, f"{place}.{side}[{number}]: unknown operator {shown!r}")
            names.add(name)
    return frozenset(names)


def _own_source(names: frozenset[str]) -> tuple[RuleSystem | None, str]:
    """The system that a rule is from by its operators, most of which exist in one system only. None
    if they exist in both. The second result says why the rule is from neither, if it has operators
    of both; else it is empty."""
    examples: dict[RuleSystem, str] = {}
    for name in sorted(names):
        sources = SIGNATURES[name].sources
        if len(sources) == 1:
            examples.setdefault(sources[0], name)
    if len(examples) > 1:
        both = " and ".join(f"{name} of {source}" for source, name in sorted(examples.items()))
        return RuleSystem.TASO, f"it mixes the operators of two systems: {both}"
    return next(iter(examples), None), ""


def _source(rules: Sequence[_RuleModel], names: Sequence[frozenset[str]]) -> RuleSystem:
    """The system of the rules whose operators do not tell it.

    If all other rules are from one system, it is this one. Otherwise, a file is FlexFlow's if an
    operator states rank 3 and no input is below -6. All other files are taken for TASO's, which
    assumes less about sizes.
    """
    systems = {
        system for system, mixed in map(_own_source, names) if system is not None and not mixed
    }
    if len(systems) == 1:
        return systems.pop()
    operators = [o for rule in rules for o in (*rule.source, *rule.target)]
    ranks = {p.value for o in operators for p in o.para if p.key == NUM_DIM}
    inputs = {tensor.op_id for o in operators for tensor in o.input}
    low = min(inputs, default=0) < LOWEST_INPUT[RuleSystem.FLEXFLOW]
    return RuleSystem.FLEXFLOW if 3 in ranks and not low else RuleSystem.TASO


@dataclass(frozen=True)
class _Checker:
    """Checks one rule. Raises InputError that names the place that is wrong."""

    where: str
    place: str
    source: RuleSystem
    mixed: str = ""

    def rule(self, model: _RuleModel) -> ForeignRule:
        if self.mixed:
            # Parameters and references have different meanings in the two systems.
            return self._meaningless(model, self.mixed)
        if missing := self._missing("srcOp", model.source) or self._missing("dstOp", model.target):
            return self._meaningless(model, missing)
        left = self._operators("srcOp", model.source)
        right = self._operators("dstOp", model.target)
        outputs = self._outputs(model, left, right)
        sources, targets = zip(*outputs, strict=True)
        return ForeignRule(
            model.name,
            self.source,
            ForeignSide(left, self._order("srcOp", left), sources),
            ForeignSide(right, self._order("dstOp", right), targets),
        )

    def _meaningless(self, model: _RuleModel, reason: str) -> ForeignRule:
        return ForeignRule(model.name, self.source, _NOTHING, _NOTHING, reason)

    @staticmethod
    def _missing(side: str, models: Sequence[_OperatorModel]) -> str:
        """A line about the first required parameter that is not given; empty if all are."""
        for number, model in enumerate(models):
            name = canonical(model.type)
            assert name is not None
            for key in SIGNATURES[name].required:
                if all(given.key != key for given in model.para):
                    return f"{side}[{number}]: {name}: parameter {key} is missing"
        return ""

    def _fail(self, at: str, problem: str) -> NoReturn:
        raise InputError(self.where, f"{self.place}.{at}: {problem}")

    def _operators(
        self, side: str, models: Sequence[_OperatorModel]
    ) -> tuple[ForeignOperator, ...]:
        if not models:
            self._fail(side, "no operators")
        checked = tuple(self._operator(f"{side}[{i}]", model) for i, model in enumerate(models))
        for number, operator in enumerate(checked):
            for position, reference in enumerate(operator.inputs):
                self._check_reference(f"{side}[{number}].input[{position}]", reference, checked)
        return checked

    def _operator(self, at: str, model: _OperatorModel) -> ForeignOperator:
        name = canonical(model.type)
        assert name is not None
        signature = SIGNATURES[name]
        arity = len(model.input)
        if arity < signature.arity or (arity > signature.arity and not signature.several):
            more = "at least " if signature.several else ""
            problem = f"{arity} inputs, expected {more}{signature.arity}"
            self._fail(at, f"{name}: {problem}")
        inputs = tuple(Reference(tensor.op_id, tensor.ts_id) for tensor in model.input)
        operator = ForeignOperator(name, inputs, self._parameters(at, name, model.para))
        if operator.parameters.get(NUM_INPUTS, arity) != arity:
            problem = f"{NUM_INPUTS} is {operator.parameters[NUM_INPUTS]}, expected {arity}"
            self._fail(at, f"{name}: {problem}")
        if operator.parameters.get(NUM_OUTPUTS, operator.outputs) != operator.outputs:
            problem = f"{NUM_OUTPUTS} is {operator.parameters[NUM_OUTPUTS]}, expected 1"
            self._fail(at, f"{name}: {problem}")
        return operator

    def _parameters(
        self, at: str, name: str, models: Sequence[_ParameterModel]
    ) -> Mapping[str, int]:
        signature = SIGNATURES[name]
        known = (*signature.required, *signature.optional, *DESCRIPTIVE)
        parameters: dict[str, int] = {}
        for model in models:
            if model.key in parameters:
                self._fail(at, f"{name}: parameter {model.key} is given twice")
            if model.key not in known:
                self._fail(at, f"{name}: unknown parameter {model.key[:40]!r}")
            low, high = self._range(model.key)
            if model.key != OP_TYPE and not low <= model.value <= high:
                self._fail(at, f"{name}: {model.key} is {model.value}, expected {low} to {high}")
            parameters[model.key] = model.value
        if self.source is RuleSystem.FLEXFLOW and parameters.get(ACTIVATION, 0) not in (0, 2):
            self._fail(at, f"{name}: {ACTIVATION} is {parameters[ACTIVATION]}, expected 0 or 2")
        return parameters

    def _range(self, key: str) -> tuple[int, int]:
        return RANGES.get(key, (0, 0))

    def _check_reference(
        self, at: str, reference: Reference, operators: Sequence[ForeignOperator]
    ) -> None:
        lowest = LOWEST_INPUT[self.source]
        if not lowest <= reference.op < len(operators):
            self._fail(at, f"opId is {reference.op}, expected {lowest} to {len(operators) - 1}")
        ports = 1 if reference.op < 0 else operators[reference.op].outputs
        if not 0 <= reference.port < ports:
            self._fail(at, f"tsId is {reference.port}, expected {_span(ports)}")

    def _outputs(
        self,
        model: _RuleModel,
        left: Sequence[ForeignOperator],
        right: Sequence[ForeignOperator],
    ) -> tuple[tuple[Reference, Reference], ...]:
        if not model.mapped:
            self._fail("mappedOutput", "no output is mapped")
        pairs: list[tuple[Reference, Reference]] = []
        for number, entry in enumerate(model.mapped):
            at = f"mappedOutput[{number}]"
            self._check_output(at, "src", entry.source_op, entry.source_ts, left)
            self._check_output(at, "dst", entry.target_op, entry.target_ts, right)
            pair = (
                Reference(entry.source_op, entry.source_ts),
                Reference(entry.target_op, entry.target_ts),
            )
            if pair in pairs:
                self._fail(at, "the same outputs are mapped twice")
            pairs.append(pair)
        return tuple(pairs)

    def _check_output(
        self, at: str, side: str, op: int, port: int, operators: Sequence[ForeignOperator]
    ) -> None:
        if not 0 <= op < len(operators):
            self._fail(at, f"{side}OpId is {op}, expected {_span(len(operators))}")
        if not 0 <= port < operators[op].outputs:
            self._fail(at, f"{side}TsId is {port}, expected {_span(operators[op].outputs)}")

    def _order(self, side: str, operators: Sequence[ForeignOperator]) -> tuple[int, ...]:
        """The numbers of the operators, operands first. In the file they may have any order."""
        readers: list[list[int]] = [[] for _ in operators]
        waiting = [0] * len(operators)
        for number, operator in enumerate(operators):
            for reference in _own(operator):
                readers[reference].append(number)
                waiting[number] += 1
        order = [number for number, count in enumerate(waiting) if not count]
        for number in order:  # The list grows during the loop.
            for reader in readers[number]:
                waiting[reader] -= 1
                if not waiting[reader]:
                    order.append(reader)
        if len(order) < len(operators):
            number = next(i for i, count in enumerate(waiting) if count)
            self._fail(f"{side}[{number}]", "it is in a cycle of operators, or reads one that is")
        return tuple(order)


def _own(operator: ForeignOperator) -> Iterator[int]:
    """The numbers of the operators that an operator reads."""
    return (reference.op for reference in operator.inputs if reference.op >= 0)


def _span(count: int) -> str:
    return "0" if count == 1 else f"0 to {count - 1}"
