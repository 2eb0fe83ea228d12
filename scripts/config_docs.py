"""Write docs/config.md from the classes and ``#:`` comments of tapfinger.config; --check only compares."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "tapfinger" / "config.py"
ARRIVALS = ROOT / "src" / "tapfinger" / "workloads" / "arrivals.py"
TARGET = ROOT / "docs" / "config.md"

HEAD = """# Scenario files: every key

Written by `make docs` from `src/tapfinger/config.py`; do not edit by hand.

A scenario is a TOML file. Those that ship with the package are listed by `tapfinger scenarios`; your own is
given by its path. Unknown keys and bad values are errors that name the file, the key and the value. Every key can be
overridden on the command line: `--set arrivals.rate=3`, `--set clusters.edge.capacity.gpu=8` (an entry of a list by
its name), `--set task_types.0.weight=2` (or by its number).

Amounts are natural quantities by resource name, such as `{ cpu = 2, gpu = 1 }`; each must be a multiple of the
resource's smallest unit.
"""

#: The class, and where its table stands in a scenario file.
SECTIONS = (
    ("Scenario", "top level"),
    ("ClusterConfig", "`[[clusters]]`"),
    ("TaskTypeConfig", "`[[task_types]]`"),
    ("ConstantSpeed", '`speed = { kind = "constant", ... }`'),
    ("TanhSpeed", '`speed = { kind = "tanh", ... }`'),
    ("AmdahlSpeed", '`speed = { kind = "amdahl", ... }`'),
    ("PowerSpeed", '`speed = { kind = "power", ... }`'),
    ("ReboundSpeed", '`speed = { kind = "rebound", ... }`'),
    ("GridSpeed", '`speed = { kind = "grid", ... }`'),
    ("TableSpeed", '`speed = { kind = "table", ... }`'),
    ("TestbedSpeed", '`speed = { kind = "testbed", ... }`'),
    ("UnknownSpeed", '`speed = { kind = "unknown" }`'),
    ("ArrivalsConfig", "`[arrivals]`"),
    ("EligibilityConfig", "`[eligibility]`"),
    ("NoiseConfig", "`[noise]`"),
    ("KnowledgeConfig", "`[knowledge]`"),
    ("OutageConfig", "`[[outages]]`"),
)
#: Not a key of the file: set when it is loaded.
HIDDEN = {"directory", "source"}
#: Arrival processes: the class, and the kind that names it.
PROCESSES = (("Poisson", "poisson"), ("Bursty", "bursty"), ("DayNight", "day-night"))

PLAIN = {
    "str": "text",
    "int": "integer",
    "float": "number",
    "bool": "true or false",
    "PositiveInt": "integer, at least 1",
    "PositiveFloat": "number above 0",
    "Amounts": "amount of each resource",
    "SpeedConfig": "table, see below",
}
BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def render() -> str:
    """The whole page."""
    text = SOURCE.read_text(encoding="utf-8")
    lines = text.splitlines()
    classes = _classes(text)
    left_out = {name for name, node in classes.items() if _fields(node)} - {name for name, _ in SECTIONS}
    if left_out:
        raise SystemExit(f"scripts/config_docs.py: SECTIONS lacks {', '.join(sorted(left_out))}")
    parts = [HEAD]
    for name, title in SECTIONS:
        parts.append(_section(classes[name], title, lines))
        if name == "ArrivalsConfig":
            parts.append(_processes())
    return "\n".join(parts)


def _classes(text: str) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}


def _fields(node: ast.ClassDef) -> list[tuple[str, ast.AnnAssign]]:
    return [
        (item.target.id, item)
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.target.id not in HIDDEN
    ]


def _section(node: ast.ClassDef, title: str, lines: list[str]) -> str:
    out = [f"## {title}", "", _doc(node), "", "| key | value | default | meaning |", "|---|---|---|---|"]
    for name, item in _fields(node):
        meaning = _comment(item.lineno - 2, lines)
        out.append(f"| `{name}` | {_words(item.annotation)} | {_default(item.value)} | {meaning} |")
    return "\n".join(out) + "\n"


def _processes() -> str:
    """The options of the built-in arrival processes: the arguments of their constructors."""
    classes = _classes(ARRIVALS.read_text(encoding="utf-8"))
    out = []
    for name, kind in PROCESSES:
        init = next(i for i in classes[name].body if isinstance(i, ast.FunctionDef) and i.name == "__init__")
        names = [argument.arg for argument in init.args.args[1:]]
        defaults = [None] * (len(names) - len(init.args.defaults)) + list(init.args.defaults)
        options = [
            f"`{option}` ({'required' if default is None else f'default {_default(default)}'})"
            for option, default in zip(names, defaults, strict=True)
        ]
        out += [f"### `kind = {json.dumps(kind)}`", "", _doc(classes[name]), _doc(init)]
        out += ["", f"Options: {', '.join(options)}.", ""]
    return "\n".join(out)


def _doc(node: ast.ClassDef | ast.FunctionDef) -> str:
    return (ast.get_docstring(node) or "").replace("\n\n", "\n").replace("``", "`")


def _words(annotation: ast.expr) -> str:
    """A type annotation in plain words."""
    text = ast.unparse(annotation)
    if text in PLAIN:
        return PLAIN[text]
    if isinstance(annotation, ast.BinOp):  # X | None
        return _words(annotation.left)
    if isinstance(annotation, ast.Subscript):
        inner = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        head = ast.unparse(annotation.value)
        if head == "Literal":
            return " or ".join(f"`{_toml(choice)}`" for choice in inner)
        if head == "dict":
            return f"table of names, each {_words(inner[1])}"
        if head == "tuple":
            lists = {"str": "list of texts", "PositiveFloat": "list of numbers above 0"}
            return lists.get(ast.unparse(inner[0]), "list of tables, see below")
        if head == "Annotated" and isinstance(inner[1], ast.Call):
            bounds = [f"{BOUNDS[k.arg]} {_toml(k.value)}" for k in inner[1].keywords if k.arg in BOUNDS]
            return ", ".join([_words(inner[0]), *bounds])
    if text.endswith("Config"):
        return "table, see below"
    raise SystemExit(f"scripts/config_docs.py: no words for the type {text}")


def _default(value: ast.expr | None) -> str:
    if value is None:
        return "required"
    if isinstance(value, ast.Call):
        return "as below"
    return "" if ast.unparse(value) in ("None", "()", "{}", "''") else f"`{_toml(value)}`"


def _toml(value: ast.expr) -> str:
    """A literal as it would stand in a scenario file."""
    found = ast.literal_eval(value)
    if isinstance(found, dict):
        return "{ " + ", ".join(f"{key} = {item:g}" for key, item in found.items()) + " }"
    return f"{found:g}" if isinstance(found, float) else json.dumps(found)


def _comment(above: int, lines: list[str]) -> str:
    """The ``#:`` lines that end at line index ``above``, as one sentence."""
    found: list[str] = []
    while lines[above].strip().startswith("#:"):
        found.insert(0, lines[above].strip().removeprefix("#:").strip())
        above -= 1
    return " ".join(found).replace("``", "`").replace("|", "\\|")


def main() -> None:
    """Write the page, or with --check exit with an error if it is not current."""
    page = render()
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(page, encoding="utf-8")
    elif not TARGET.is_file() or TARGET.read_text(encoding="utf-8") != page:
        raise SystemExit("docs/config.md is not current; run: make docs")


if __name__ == "__main__":
    main()
