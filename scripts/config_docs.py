"""Write the reference pages from typed configurations; --check only compares.

docs/config.md: scenario files, from the classes and ``#:`` comments of tapfinger.config.
docs/settings.md: training, submission, import, live sites and profiling, from fields that carry a FieldHelp, and
from the ``#:`` comments of LiveConfig.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "tapfinger" / "config.py"
ARRIVALS = ROOT / "src" / "tapfinger" / "workloads" / "arrivals.py"
LIVE = ROOT / "src" / "tapfinger" / "live" / "config.py"
TARGET = ROOT / "docs" / "config.md"
SETTINGS = ROOT / "docs" / "settings.md"

HEAD = """# Scenario files: every key

Written by `make docs` from `src/tapfinger/config.py`; do not edit by hand.

A scenario is a TOML file. Those that ship with the package are listed by `tapfinger scenarios`; your own is
given by its path. Unknown keys and bad values are errors that name the file, the key and the value. Every key can be
overridden on the command line: `--set arrivals.rate=3`, `--set clusters.edge.capacity.gpu=8` (an entry of a list by
its name), `--set task_types.0.weight=2` (or by its number).

Amounts are natural quantities by resource name, such as `{ cpu = 2, gpu = 1 }`; each must be a multiple of the
resource's smallest unit.
"""

#: Class -> place of its table in a scenario file.
SECTIONS = (
    ("Scenario", "top level"),
    ("ResourceConfig", "`[resources]`: `NAME = unit`, or `[resources.NAME]`"),
    ("ClusterConfig", "`[[clusters]]`"),
    ("NodeConfig", "`nodes` of a cluster: a list of `{ NAME = amount, count = ... }`"),
    ("TaskTypeConfig", "`[[task_types]]`"),
    ("ConstantSpeed", '`speed = { kind = "constant", ... }`'),
    ("TanhSpeed", '`speed = { kind = "tanh", ... }`'),
    ("AmdahlSpeed", '`speed = { kind = "amdahl", ... }`'),
    ("PowerSpeed", '`speed = { kind = "power", ... }`'),
    ("ReboundSpeed", '`speed = { kind = "rebound", ... }`'),
    ("GridSpeed", '`speed = { kind = "grid", ... }`'),
    ("TableSpeed", '`speed = { kind = "table", ... }`'),
    ("TestbedSpeed", '`speed = { kind = "testbed", ... }`'),
    ("FactorSpeed", "`on` of a task type: `NAME = number` or `NAME = { factor = ..., of = ... }`"),
    ("UnknownSpeed", '`speed = { kind = "unknown" }`'),
    ("ArrivalsConfig", "`[arrivals]`"),
    ("EligibilityConfig", "`[eligibility]`"),
    ("NoiseConfig", "`[noise]`"),
    ("KnowledgeConfig", "`[knowledge]`"),
    ("OutageConfig", "`[[outages]]`"),
    ("BurstyOthers", '`[[others]]` with `kind = "bursty"`'),
    ("DayNightOthers", '`[[others]]` with `kind = "day-night"`'),
    ("TraceOthers", '`[[others]]` with `kind = "trace"`'),
    ("DataConfig", "`[[data]]`"),
    ("LinksConfig", "`[links]`"),
    ("LinkConfig", "`between` of links: a list of `{ ends = [NAME, NAME], mbps = ... }`"),
)
#: Fields that are not keys of the file: set on loading.
HIDDEN = {"directory", "source"}
#: Arrival processes: class and kind.
PROCESSES = (("Poisson", "poisson"), ("Bursty", "bursty"), ("DayNight", "day-night"))

PLAIN = {
    "str": "text",
    "int": "integer",
    "float": "number",
    "bool": "true or false",
    "PositiveInt": "integer, at least 1",
    "PositiveFloat": "number above 0",
    "Amounts": "amount of each resource",
    "Share": "number from 0 to 1",
    "Mbps": "number above 0",
    "OthersConfig": "table, see below",
    "SpeedConfig": "table, see below",
    "KindSpeed": "number or table, see below",
}
BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}

#: Constants of the module of scenarios, by name: bounds of keys.
CONSTANTS: dict[str, ast.expr] = {}


def render() -> str:
    """The whole page."""
    text = SOURCE.read_text(encoding="utf-8")
    lines = text.splitlines()
    classes = _classes(text)
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            CONSTANTS[node.targets[0].id] = node.value
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
    """A literal as written in a scenario file."""
    if isinstance(value, ast.Call):  # a resource is written as its unit
        value = value.keywords[0].value
    if isinstance(value, ast.Dict):
        items = zip(value.keys, value.values, strict=True)
        return "{ " + ", ".join(f"{ast.literal_eval(key)} = {_toml(item)}" for key, item in items if key) + " }"
    if isinstance(value, ast.Name):
        value = CONSTANTS[value.id]
    found = _number(value) if isinstance(value, ast.BinOp) else ast.literal_eval(value)
    return f"{found:g}" if isinstance(found, float) else json.dumps(found)


def _number(value: ast.expr) -> Any:
    """A number, or a product such as 16 * 1024."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        return _number(value.left) * _number(value.right)
    return ast.literal_eval(value)


def _comment(above: int, lines: list[str]) -> str:
    """The ``#:`` lines that end at line index ``above``, as one sentence."""
    found: list[str] = []
    while lines[above].strip().startswith("#:"):
        found.insert(0, lines[above].strip().removeprefix("#:").strip())
        above -= 1
    return " ".join(found).replace("``", "`").replace("|", "\\|")


# --------------------------------------------------------------------------- docs/settings.md

SETTINGS_HEAD = """# Settings: training, submission, import, live sites, profiling

Written by `make docs` from the typed configurations named below; do not edit by hand. Options of the command line are
made from the same fields. Keys of scenario files are in [config.md](config.md).
"""


def render_settings() -> str:
    """The page of settings."""
    from tapfinger.commands.compare import CompareOptions
    from tapfinger.commands.live import AgentOptions
    from tapfinger.commands.profile import ProfileOptions
    from tapfinger.commands.reproduce import ReproduceRequest
    from tapfinger.commands.simulate import SimulateOptions
    from tapfinger.commands.train import FinetuneOptions, TrainOptions
    from tapfinger.live.http.options import ServeOptions
    from tapfinger.live.protocol.records import TaskSpec
    from tapfinger.profiling.options import ScenarioChoices
    from tapfinger.training import config as training
    from tapfinger.workloads.importers.options import ConvertOptions, ReadOptions

    trained = {*_option_names(TrainOptions), *_option_names(FinetuneOptions)}
    paper = {"paper": training.PRESETS["paper"], "universal": training.UNIVERSAL, "finetune": training.FINETUNE}
    parts = [SETTINGS_HEAD]
    parts.append(_settings("Training: `tapfinger train`, `finetune`", training.TrainConfig, trained, paper))
    for name in ("DeviationConfig", "GroupConfig", "MappoConfig"):
        parts.append(_settings(f"Training: `{name}`", getattr(training, name), set()))
    parts.append(_settings("Submission: `tapfinger run`, `submit`, lines of `--file`, HTTP", TaskSpec, {"*"}))
    parts.append(_settings("Import: `tapfinger workload import`", ConvertOptions))
    parts.append(_settings("Import: what a trace may not say", ReadOptions))
    parts.append(_settings("Import: `tapfinger workload from-profiles`", ScenarioChoices))
    parts.append(_live())
    parts.append(_settings("Live: `tapfinger serve`", ServeOptions))
    parts.append(_settings("Live: `tapfinger agent`", AgentOptions))
    parts.append(_settings("Profiling: `tapfinger profile`", ProfileOptions))
    parts.append(_settings("Comparisons: `tapfinger compare`", CompareOptions))
    parts.append(_settings("One run: `tapfinger simulate`", SimulateOptions))
    parts.append(_settings("The paper's figures: `tapfinger reproduce`", ReproduceRequest))
    return "\n".join(parts)


def _option_names(annotation: Any) -> list[str]:
    """Fields that a parameter annotated with ``Fields`` turns into options."""
    return list(annotation.__metadata__[0].chosen())


def _settings(
    title: str, config: type, options: set[str] | None = None, presets: Mapping[str, Mapping[str, Any]] | None = None
) -> str:
    """A table of the fields. ``options``: fields that are options, if not all. ``presets``: further columns."""
    from tapfinger.settings import REQUIRED, described

    out = [f"## {title}", "", _plain(config.__doc__), "", f"`{config.__module__}.{config.__qualname__}`", ""]
    heads = ["field", "option", "default", *(presets or ()), "meaning"]
    out += [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, item in described(config).items():
        is_option = options is None or "*" in options or name in options
        unit = f" `{item.setting.metavar}`" if item.setting.metavar else ""
        option = f"`{item.option}`{unit}".replace("|", "\\|") if is_option and name != "argv" else ""
        default = "required" if item.default is REQUIRED else _shown(item, item.default)
        others = [_shown(item, given[name]) if name in given else "" for given in (presets or {}).values()]
        bounds = f" {item.setting.bounds[0].upper()}{item.setting.bounds[1:]}." if item.setting.bounds else ""
        meaning = (item.setting.help + bounds).replace("|", "\\|")
        out.append(f"| {' | '.join([f'`{name}`', option, default, *others, meaning])} |")
    return "\n".join(out) + "\n"


def _shown(item: Any, value: Any) -> str:
    if value is None or value in ("", (), {}):
        return ""
    text = str(value).lower() if isinstance(value, bool) else item.value_text(value)
    return text if value in item.setting.words.values() or text in item.setting.words.values() else f"`{text}`"


def _live() -> str:
    """The keys of ``[live]``, from their comments."""
    text = LIVE.read_text(encoding="utf-8")
    classes, lines = _classes(text), text.splitlines()
    keys = _section(classes["LiveConfig"], "Live: `[live]` of a site's file", lines)
    return keys + "\n" + _section(classes["BackendConfig"], "Live: `[live.backend]`, `[live.backends.CLUSTER]`", lines)


def _plain(doc: str | None) -> str:
    return (doc or "").partition("\n")[0].replace("``", "`")


PAGES = {TARGET: render, SETTINGS: render_settings}


def main() -> None:
    """Write the pages; with --check, exit with an error if one is out of date."""
    for target, make in PAGES.items():
        page = make()
        if "--check" not in sys.argv[1:]:
            target.write_text(page, encoding="utf-8")
        elif not target.is_file() or target.read_text(encoding="utf-8") != page:
            raise SystemExit(f"docs/{target.name} is not current; run: make docs")


if __name__ == "__main__":
    main()
