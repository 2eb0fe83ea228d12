"""Language modelling: trains a small Transformer on text of a random grammar, until its validation loss is close
to the grammar's entropy.

Workers: one per gpu in TAPFINGER_GPUS, on real gpus or as processes; they share the cpus in TAPFINGER_CPUS.
Exit code 0 when the target is reached, 1 if the last epoch ends before that, 2 if it cannot start.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tapfinger.testbed.common import run_task


def main(argv: Sequence[str] | None = None) -> int:
    """Train; return the exit code."""
    return run_task(__doc__ or "", "tapfinger.testbed.transformer", argv)


if __name__ == "__main__":
    sys.exit(main())
