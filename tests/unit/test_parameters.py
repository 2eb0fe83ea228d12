"""A function with many parameters takes a typed object instead."""

import ast
from pathlib import Path

SRC = Path(__file__).parents[2] / "src" / "tapfinger"
MOST = 8


def _exempt(path: Path, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Kernels take arrays one by one, as numba does. Parameters of a scheduler are its options (NAME@option=...)."""
    kernels = path.parent.name == "sim" and path.stem.endswith("kernels")
    return kernels or (path.parent.name == "schedulers" and function.name == "__init__")


def test_no_function_has_more_than_eight_parameters() -> None:
    found = []
    for path in sorted(SRC.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _exempt(path, node):
                given = node.args
                names = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
                if len([name for name in names if name not in ("self", "cls")]) > MOST:
                    found.append(f"{path.relative_to(SRC)}: {node.name}")
    assert not found
