"""Rules as FlexFlow writes them, for the readers of its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def tensors(*places: int) -> list[dict[str, int]]:
    return [{"opId": place, "tsId": 0} for place in places]


def foreign_operator(kind: str, places: tuple[int, ...], **parameters: int) -> dict[str, Any]:
    para = [{"key": f"PM_{key}", "value": value} for key, value in parameters.items()]
    return {"type": f"OP_{kind}", "input": tensors(*places), "para": para}


def foreign_rule(name: str, left: list[Any], right: list[Any]) -> dict[str, Any]:
    ends = {"srcOpId": len(left) - 1, "srcTsId": 0, "dstOpId": len(right) - 1, "dstTsId": 0}
    return {"name": name, "srcOp": left, "dstOp": right, "mappedOutput": [ends]}


def foreign_file(path: Path) -> Path:
    """A file with one rule for any degree, one for the degree of its file, and one that is
    false."""
    move = {"PARALLEL_DIM": 2, "PARALLEL_DEGREE": 2}
    relu = foreign_operator("RELU", (0,))
    any_degree = foreign_rule(
        "any degree",
        [foreign_operator("REPLICATE", (-1,), **move), relu],
        [foreign_operator("RELU", (-1,)), foreign_operator("REPLICATE", (0,), **move)],
    )
    two = {"NUM_INPUTS": 2, "AXIS": 0, "NUMDIM": 3}
    one_degree = foreign_rule(
        "degree 2",
        [foreign_operator("EW_ADD", (-1, -2))],
        [
            foreign_operator("CONCAT", (-1, -2), **two),
            foreign_operator("REDUCE", (0,), PARALLEL_DIM=0, PARALLEL_DEGREE=2),
        ],
    )
    false = foreign_rule(
        "false", [foreign_operator("RELU", (-1,))], [foreign_operator("EW_ADD", (-1, -1))]
    )
    path.write_text(json.dumps({"rule": [any_degree, one_degree, false]}), "utf-8")
    return path
