"""Options of commands are the fields of typed configurations."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from tapfinger.commands.options import Fields, expand_fields, numbers
from tapfinger.commands.screen import plain_console
from tapfinger.errors import ConfigError, UnknownNameError
from tapfinger.live.config import load_site
from tapfinger.live.protocol.records import TaskSpec
from tapfinger.settings import FieldHelp, check_settings, described

COMMANDS = Path(__file__).parents[2] / "src" / "tapfinger" / "commands"


@dataclass(frozen=True)
class Oven:
    heat: Annotated[int, FieldHelp("How hot.", "C", min=0, max=300)] = 180
    minutes: Annotated[float, FieldHelp("How long.", above=0)] = 45.0
    trays: Annotated[Mapping[str, float], FieldHelp("What is in it.", "NAME=NUMBER,...")] = field(default_factory=dict)
    fan: Annotated[bool, FieldHelp("Move the air.", option="--fan")] = False
    hidden: int = 7


def _call(fields, *words):
    app, seen = typer.Typer(add_completion=False, rich_markup_mode=None), []

    @app.command()
    @expand_fields
    def bake(what: str, *, oven: Annotated[Oven, fields], twice: bool = False) -> None:
        """Bake."""
        seen.append((what, oven, twice))

    done = CliRunner().invoke(app, words, env={"COLUMNS": "100", "TERMINAL_WIDTH": "100"})
    return done, seen


def test_fields_become_options_and_options_the_object():
    fields = Fields(Oven, parsers={"trays": (str | None, lambda *given: numbers(*given) or {})})
    assert _call(fields, "bread")[1] == [("bread", Oven(), False)]
    words = ("cake", "--heat", "200", "--trays", "low=1,high=2", "--fan", "--twice")
    assert _call(fields, *words)[1] == [("cake", Oven(200, 45.0, {"low": 1.0, "high": 2.0}, True), True)]
    done, seen = _call(fields, "bread", "--heat", "301")
    assert (done.exit_code, seen) == (2, [])
    text = _call(fields, "--help")[0].output
    assert "How hot.  [default: 180; 0<=x<=300]" in text
    assert "hidden" not in text


def test_presets_give_what_was_left_out_and_help_shows_it():
    fields = Fields(Oven, "heat minutes", presets={"usual": {}, "pizza": {"heat": 300}}, always="minutes", make=dict)
    assert _call(fields, "pizza")[1] == [("pizza", {"minutes": 45.0}, False)]
    assert _call(fields, "pizza", "--heat", "250")[1] == [("pizza", {"heat": 250, "minutes": 45.0}, False)]
    assert "How hot. [default: 180; pizza: 300]" in _call(fields, "--help")[0].output


@pytest.mark.parametrize(
    ("values", "options", "words"),
    [
        ({"heat": 301}, False, "heat = 301 must be between 0 and 300"),
        ({"minutes": 0}, True, "--minutes 0 must be above 0"),
        ({"minutes": float("nan")}, True, "--minutes nan must be above 0"),
    ],
)
def test_bounds_are_checked_as_they_are_declared(values, options, words):
    with pytest.raises(ConfigError, match=f"^{words}$"):
        check_settings(Oven(**values), options)


def test_bounds_of_tasks_are_those_of_the_wire():
    retries = described(TaskSpec)["retries"].setting
    assert (retries.min, retries.max) == (0, 1000)


def test_brackets_are_printed_as_they_are(capsys):
    from rich.table import Table

    table = Table("[type]", title="[title]")
    table.add_row("lm[1]")
    plain_console().print("pip install 'tapfinger[train]'", table)
    out = capsys.readouterr().out
    assert all(word in out for word in ("'tapfinger[train]'", "[type]", "[title]", "lm[1]"))


def test_commands_print_by_the_plain_console_only():
    for path in COMMANDS.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            assert called != "Console" or path.name == "screen.py", f"{path.name}, line {node.lineno}"


def test_a_site_is_a_file_or_a_shipped_scenario(tmp_path):
    assert load_site(Path("multi-3"))[0].name == "multi-3"
    with pytest.raises(UnknownNameError, match=r"there is no scenario 'multi3'. Did you mean 'multi-3'\?"):
        load_site(Path("multi3"))
    with pytest.raises(ConfigError, match=r"there is no scenario file .*gone.toml; give a TOML file, or"):
        load_site(tmp_path / "gone.toml")
