"""A task of the test-bed under torchrun."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path


def test_under_torchrun_it_is_one_of_several(tmp_path: Path) -> None:
    # As torchrun starts it: two processes that meet by the environment. Output is the first one's.
    words = ("--standalone", "--nproc-per-node", "2", "-m", "tapfinger.testbed.language_modeling")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TAPFINGER_CPUS": "2", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "torch.distributed.run", *words, "--scale", "0.05", "--seed", "20001"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"val_loss (\d+\.\d+) of", done.stdout)]
    assert len(re.findall("step 0:", done.stdout)) == 1
    assert losses[0] > losses[-1]
