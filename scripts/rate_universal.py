"""Evaluate the shipped universal model again, with the pipeline as it is now, and update its card."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from tapfinger.policy.exported import load_model
from tapfinger.policy.files import change_card
from tapfinger.schedulers.model_choice import UNIVERSAL
from tapfinger.training.publish import rate_universal

PATH = Path(__file__).parents[1] / "src" / "tapfinger" / "models" / f"{UNIVERSAL}.onnx"


def main() -> None:
    """Evaluate and update the card; takes about a minute."""
    card = load_model(str(PATH)).card
    evaluation = rate_universal(PATH, len(card.evaluation["per_site"]))
    change_card(PATH, replace(card, evaluation=evaluation))
    for name, shares in evaluation.items():
        if name.startswith("share_of_"):
            print(f"{name}: {np.exp(np.log(shares).mean()):.3f} (geometric mean), {np.mean(shares):.3f} (mean)")


if __name__ == "__main__":
    main()
