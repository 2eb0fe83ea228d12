"""Image classification: a small ConvNet is trained on pictures made from a seed, until its validation loss is low.

Workers: one per gpu that TAPFINGER_GPUS says, on real gpus or as processes; they share the cpus of TAPFINGER_CPUS.
Exit code 0 when the target is reached, 1 when it is not within the last epoch, 2 where it cannot begin.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tapfinger.testbed.common import run_task


def main(argv: Sequence[str] | None = None) -> int:
    """Train; returns the exit code."""
    return run_task(__doc__ or "", "tapfinger.testbed.convnet", argv)


if __name__ == "__main__":
    sys.exit(main())
