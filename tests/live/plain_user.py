"""Code that runs without root's right to ignore permissions, also where the tests are run by root."""

from __future__ import annotations

import subprocess
import sys

import pytest

_WRAPPER = ("unshare", "-U", "--map-user=1000", "--map-group=1000", "--")


def as_plain_user(code: str, *words: object) -> str:
    """What a program of Python writes, with these words in ``sys.argv``; skips where no user can be pretended."""
    if subprocess.run([*_WRAPPER, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces of users here")
    command = [*_WRAPPER, sys.executable, "-c", code, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
