"""Speech recognition: transcribes utterances made of tones, with an encoder like Wav2Vec2 and greedy CTC decoding.

Workers: one per gpu in TAPFINGER_GPUS, on real gpus or as processes; they share the cpus in TAPFINGER_CPUS.
Exit code 0 when all utterances are transcribed, 2 if it cannot start.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tapfinger.testbed.common import run_task


def main(argv: Sequence[str] | None = None) -> int:
    """Transcribe; return the exit code."""
    return run_task(__doc__ or "", "tapfinger.testbed.wav2vec", argv)


if __name__ == "__main__":
    sys.exit(main())
