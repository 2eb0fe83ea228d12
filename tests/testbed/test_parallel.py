"""Several workers take the same steps as one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tapfinger.errors import ConfigError
from tapfinger.testbed.common import Allotment, allotment

PROGRAM = Path(__file__).with_name("gradients.py")


def step(workers: int) -> Any:
    done = subprocess.run([sys.executable, str(PROGRAM), str(workers)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_gradients_of_two_workers_are_those_of_one_with_the_joined_batch() -> None:
    one, two = step(1), step(2)
    assert (one["workers"], two["workers"]) == (1, 2)
    assert one["samples"] == two["samples"] == 7
    alone, joined = np.array(one["gradient"]), np.array(two["gradient"])
    assert np.abs(alone).max() > 1e-3
    np.testing.assert_allclose(joined, alone, rtol=1e-3, atol=1e-5)


def test_what_is_allotted_comes_from_the_environment() -> None:
    assert allotment({"TAPFINGER_CPUS": "4", "TAPFINGER_GPUS": "2"}) == Allotment(4, 2)
    assert allotment({"TAPFINGER_CPUS": "0.5", "TAPFINGER_GPUS": "0"}) == Allotment(1, 0)
    assert allotment({}).gpus is None
    assert allotment({}).cpus >= 1
    assert [Allotment(c, g).workers for c, g in ((4, None), (4, 0), (4, 1), (4, 3))] == [1, 1, 1, 3]
    assert [Allotment(4, g).threads(Allotment(4, g).workers) for g in (0, 1, 2, 3, 8)] == [4, 4, 2, 1, 1]


@pytest.mark.parametrize("text", ["many", "-1", "nan", "1e9"])
def test_an_allotment_that_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="TAPFINGER_GPUS = "):
        allotment({"TAPFINGER_GPUS": text})
