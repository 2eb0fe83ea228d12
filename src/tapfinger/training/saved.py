"""State of a run on disk: one safetensors file, with plain values in its header. Loading it never executes code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from tapfinger.errors import ConfigError
from tapfinger.policy.files import write_at_once

_WEIGHTS, _OPTIMIZER, _VALUES = "network.", "optimizer.", "values"


def save_state(path: Path, network: nn.Module, values: dict[str, Any], optimizer: dict[str, Any] | None = None) -> None:
    """Save weights, ``values`` that JSON can hold, and an optimizer's state."""
    tensors = {_WEIGHTS + name: value for name, value in network.state_dict().items()}
    settings = None
    if optimizer is not None:
        settings = optimizer["param_groups"]
        for index, memory in optimizer["state"].items():
            tensors |= {f"{_OPTIMIZER}{index}.{name}": value for name, value in memory.items()}
    flat = {name: value.detach().contiguous() for name, value in tensors.items()}
    write_at_once(path, save_tensors(flat, {_VALUES: json.dumps({"settings": settings, **values})}))


def load_state(path: Path, network: nn.Module) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Fill the network; return the values, and the optimizer's state if there is one."""
    try:
        with safe_open(path, "pt") as file:
            values: dict[str, Any] = json.loads(file.metadata()[_VALUES])
        tensors = load_tensors(path.read_bytes())
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: is damaged ({error}); choose another --out, or delete it to start again") from None
    network.load_state_dict(_of(tensors, _WEIGHTS))
    settings = values.pop("settings")
    if settings is None:
        return values, None
    memory: dict[int, dict[str, Tensor]] = {}
    for name, value in _of(tensors, _OPTIMIZER).items():
        index, field = name.split(".")
        memory.setdefault(int(index), {})[field] = value
    return values, {"state": memory, "param_groups": settings}


def _of(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
