"""What the pages about live sites show works: files load, commands and their options exist."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from tapfinger.cli import app
from tapfinger.live.config import build_site, load_site

DOCS = Path(__file__).parents[2] / "docs"
OTHERS = ("learning-profiles.md", "testbed.md", "extending-backend.md", "extending-resource.md")
PAGES = [*sorted(DOCS.glob("live*.md")), *(DOCS / name for name in OTHERS)]


def blocks(page: Path, kind: str) -> list[str]:
    """What stands between fences of this kind."""
    parts = re.split(r"^ *```(\w*)\n", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [text for found, text in zip(parts[1::4], parts[2::4], strict=True) if found == kind]


FILES = [(page.name, text) for page in PAGES for text in blocks(page, "toml") if "entry-points" not in text]


@pytest.mark.parametrize(("page", "text"), FILES)
def test_files_of_sites_load(page: str, text: str, tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    if "[[clusters]]" not in text:
        whole = next(file for name, file in FILES if name == "live.md" and "[[clusters]]" in file)
        text = whole.partition("[live]")[0] + text
    site.write_text(text, encoding="utf-8")
    scenario, _ = load_site(site)
    assert build_site(scenario).clusters


def commands() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for block in blocks(page, ""):
            for line in block.replace("\\\n", " ").splitlines():
                words = re.sub(r"^\$ |^([A-Z_]+=\S+ )+", "", line).partition("#")[0].strip()
                if words.startswith("tapfinger "):
                    found.append((page.name, words))
        for unit in blocks(page, "ini"):
            start = unit.replace("\\\n", " ").partition("ExecStart=/opt/tapfinger/bin/")[2]
            found.append((page.name, start.partition("\n")[0]))
    return found


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_units_are_as_systemd_reads_them(tmp_path: Path) -> None:
    names = []
    for unit in blocks(DOCS / "live.md", "ini"):
        head, _, text = unit.partition("\n")
        names.append(head.rpartition("/")[2])
        (tmp_path / names[-1]).write_text(text.replace("/opt/tapfinger/bin/tapfinger", "/bin/true"))
    assert names == ["tapfinger.service", "tapfinger-agent.service"]
    verify = ["systemd-analyze", "verify", *(str(tmp_path / name) for name in names)]
    said = subprocess.run(verify, capture_output=True, text=True, check=False)
    assert [line for line in said.stderr.splitlines() if str(tmp_path) in line] == []


def test_there_are_commands_to_look_at() -> None:
    assert len(commands()) > 30
    assert {page for page, _ in commands()} >= {"live.md", "live-insight.md", "live-ray.md", "live-security.md"}


@pytest.mark.parametrize(("page", "line"), commands())
def test_commands_and_their_options_exist(page: str, line: str) -> None:
    words = shlex.split(line.partition(" > ")[0])[1:]
    command: Any = get_command(app)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
        command = command.load() if hasattr(command, "load") else command  # it is built when it is asked for
    command = command.commands["new"] if command.name == "token" else command  # which may be left out
    assert command.name != "tapfinger", f"there is no command {words[:1]}"
    known = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
    own = words[: words.index("--")] if "--" in words else words
    assert {word.partition("=")[0] for word in own if word.startswith("-") and word != "-"} <= known
