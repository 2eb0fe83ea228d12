"""Speech recognition: utterances of tones are transcribed by an encoder like Wav2Vec2 with greedy CTC decoding.

Workers: one per gpu that TAPFINGER_GPUS says, on real gpus or as processes; they share the cpus of TAPFINGER_CPUS.
Exit code 0 when all utterances are transcribed, 2 where it cannot begin.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tapfinger.testbed.common import run_task


def main(argv: Sequence[str] | None = None) -> int:
    """Transcribe; returns the exit code."""
    return run_task(__doc__ or "", "tapfinger.testbed.wav2vec", argv)


if __name__ == "__main__":
    sys.exit(main())
