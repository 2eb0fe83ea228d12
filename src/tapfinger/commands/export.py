"""``tapfinger export``: writes a checkpoint as one file that runs without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    checkpoint: Annotated[
        Path, typer.Argument(metavar="DIR", help="A checkpoint: weights.safetensors and card.json, or a run's folder.")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The model to write. [default: NAME.onnx in this folder]")
    ] = None,
) -> None:
    """Write a trained network as one ONNX graph for any number of clusters and tasks; checks that both agree.

    Needs torch: pip install 'tapfinger[train]'. Running the model does not.
    """
    from tapfinger.errors import ConfigError, MissingDependency

    try:
        from tapfinger.policy import checkpoint as files
        from tapfinger.policy.actor_critic import NetworkConfig
        from tapfinger.policy.export import export as write
    except ModuleNotFoundError as error:
        raise MissingDependency(f"exporting needs {error.name}: pip install 'tapfinger[train]'") from None
    folder = checkpoint / "checkpoint" if (checkpoint / "checkpoint").is_dir() else checkpoint
    network, card = files.load(folder)
    target = out or Path(f"{card.name}.onnx")
    if target.suffix != ".onnx":
        raise ConfigError(f"--out {target}: a model's name must end in .onnx")
    path = write(network, NetworkConfig(**card.config), card, target)
    typer.echo(
        f"The model is {path} ({path.stat().st_size / 1024:.0f} kB); use it as --scheduler tapfinger@model={path}"
    )
