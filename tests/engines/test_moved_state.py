"""A task in a sandbox cannot move what is hidden from it to where it is not hidden."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tapfinger.errors import ConfigError
from tapfinger.live.backends.sandbox import Sandbox, find_sandbox


def made(*hidden: Path) -> Sandbox:
    try:
        found = find_sandbox("required", hidden)
    except ConfigError as error:
        pytest.skip(str(error))
    assert found is not None
    return found


def test_directories_above_private_ones_cannot_be_moved(tmp_path: Path) -> None:
    state = tmp_path / "home" / ".local" / "state" / "tapfinger"
    (state / "own").mkdir(parents=True)
    (state / "token").write_text("secret")
    key = tmp_path / "home" / "keys" / "key.pem"
    key.parent.mkdir()
    key.write_text("secret")
    sandbox = made(state, key)
    tries = [
        f"mv -T {path} {path}-moved"
        for path in (state, state.parent, state.parents[1], state.parents[2], key, key.parent)
    ]
    work = f"{'; '.join(tries)}; touch {tmp_path}/home/new {tmp_path}/home/.local/new {state}/own/new; true"
    command = [*sandbox.command(state / "own"), "--", "/bin/sh", "-c", work]
    subprocess.run(command, check=True, timeout=60, stderr=subprocess.DEVNULL)
    assert (state / "token").read_text() == "secret"
    assert key.read_text() == "secret"
    assert not [path for path, folders, _ in os.walk(tmp_path) for name in folders if name.endswith("-moved")]
    for place in (tmp_path / "home", tmp_path / "home" / ".local", state / "own"):
        assert (place / "new").exists(), "all else can be written as ever"
