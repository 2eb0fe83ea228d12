"""Networks as files that run without torch: NAME.onnx with its card next to it. The only user of onnxruntime."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tapfinger.errors import CheckpointMismatch, MissingDependency, UnknownNameError
from tapfinger.policy.actions import Scores
from tapfinger.policy.card import Card, read_card
from tapfinger.policy.encoding.inputs import Inputs
from tapfinger.policy.files import GRAPH, card_file, check_digest, read_bytes, read_card_file

#: Outputs needed to act, which come first; the value is only for training.
ACTING = Scores._fields

#: Metadata keys of older files, which hold their card inside: the card, and "length:sha256" of the
#: bytes that hold the graph.
CARD_KEY = "tapfinger.card"
GRAPH_KEY = "tapfinger.graph"


class NetworkGraph:
    """A network that can be run."""

    def __init__(self, data: bytes, source: str) -> None:
        """``source``: origin of the bytes, for messages."""
        self._session, self._only_these = _session(data, source)
        #: Fields of ``Inputs`` that it takes; those that a network does not use are absent from its graph.
        self.takes = tuple(i.name for i in self._session.get_inputs())
        gives = {o.name for o in self._session.get_outputs()}
        #: Number of layers whose attention the file can return; 0 without a graph.
        self.layers = next(n for n in range(len(gives) + 1) if not gives.issuperset(attention_names(n + 1)))

    def run(self, inputs: Inputs) -> Scores:
        """Scores of a batch of any size that the network accepts."""
        return Scores(*self._run(ACTING, inputs))

    def attention(self, inputs: Inputs) -> npt.NDArray[np.float32]:
        """(layers, 2, B, heads, N, M): the fields of policy.han.Attention, layer by layer. For explanations."""
        found = self._run(attention_names(self.layers), inputs)
        return np.array(found).reshape(self.layers, 2, *found[0].shape)

    @property
    def metadata(self) -> dict[str, str]:
        """The file's metadata."""
        return dict(self._session.get_modelmeta().custom_metadata_map)

    def _run(self, outputs: Sequence[str], inputs: Inputs) -> list[Any]:
        feeds = {name: getattr(inputs, name) for name in self.takes}
        return list(self._session.run(outputs, feeds, self._only_these))


class ExportedNetwork(NetworkGraph):
    """A network that can be run, and its card."""

    def __init__(self, graph: bytes, card: Card, source: str) -> None:
        """``source``: origin of the bytes, for messages."""
        self.card = card
        #: SHA-256 of the graph.
        self.digest = hashlib.sha256(graph).hexdigest()
        super().__init__(graph, source)


def attention_names(layers: int) -> list[str]:
    """Names of the outputs that hold attention: of clusters and of tasks in turn, layer by layer."""
    return [f"attention_{whose}_{layer}" for layer in range(layers) for whose in ("of_clusters", "of_tasks")]


def _session(data: bytes, source: str) -> tuple[Any, Any]:
    """The session, and options that run only the part of the graph that the wanted outputs need."""
    try:
        import onnxruntime  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        raise MissingDependency("running a trained network needs onnxruntime: pip install onnxruntime") from None

    options = onnxruntime.SessionOptions()
    # One thread: the graph is small, and runs execute side by side.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    # Sizes change from turn to turn, so memory plans, one per size, would only pile up.
    options.enable_mem_pattern = False
    options.log_severity_level = 4
    running = onnxruntime.RunOptions()
    running.only_execute_path_to_fetches = True
    try:
        return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"]), running
    except Exception as error:  # onnxruntime's errors have no common base
        reason = str(error).splitlines()[0]
        raise CheckpointMismatch(f"{source}: is damaged or no ONNX model ({reason}); export or copy it again") from None


def models_folder() -> Path:
    """Folder of the models that ship with the package."""
    return Path(str(resources.files("tapfinger") / "models"))


def shipped_models() -> dict[str, Card]:
    """Cards of the models that ship with the package, by name; no network is loaded."""
    return {name: _card(*_state_of(card_file(models_folder() / f"{name}.onnx"))) for name in _shipped_names()}


def _shipped_names() -> list[str]:
    return sorted(f.name.removesuffix(".onnx") for f in models_folder().iterdir() if f.name.endswith(".onnx"))


def load_model(model: str) -> ExportedNetwork:
    """A model by its shipped name or from a file (.onnx); an unchanged file is loaded only once."""
    if not model.endswith(".onnx"):
        if model not in _shipped_names():
            raise UnknownNameError("model", model, [*_shipped_names(), "PATH.onnx"])
        model = str(models_folder() / f"{model}.onnx")
    path = Path(model)
    graph = _state_of(path)
    beside = card_file(path)
    return _load(graph, _state_of(beside) if beside.exists() else None)


def source_of(model: str) -> str:
    """Where another process on any machine looks for a model: a shipped name, or the whole path of a file."""
    return str(Path(model).absolute()) if model.endswith(".onnx") else model


#: Path, modification time and size: equal as long as the file is unchanged.
_State = tuple[str, int, int]


def _state_of(path: Path) -> _State:
    try:
        status = path.stat()
    except OSError as error:
        raise CheckpointMismatch(f"{path}: cannot be read ({error.strerror}); give an exported model") from None
    return str(path.resolve()), status.st_mtime_ns, status.st_size


@lru_cache(maxsize=8)
def _load(graph: _State, card: _State | None) -> ExportedNetwork:
    path = Path(graph[0])
    data = read_bytes(path)
    if card is None:
        return _with_embedded_card(data, path)
    beside = Path(card[0])
    found, fields = read_card_file(beside)
    # onnxruntime trusts its files, so it must never see a damaged one.
    check_digest(path, data, beside, fields, GRAPH)
    return ExportedNetwork(data, found, str(path))


@lru_cache(maxsize=128)
def _card(path: str, changed: int, size: int) -> Card:  # noqa: ARG001 - part of the key
    return read_card_file(Path(path))[0]


def _with_embedded_card(data: bytes, path: Path) -> ExportedNetwork:
    """A model from an older version, which kept the card inside the file."""
    metadata = NetworkGraph(data, str(path)).metadata
    if CARD_KEY not in metadata:
        raise CheckpointMismatch(
            f"{path}: has no card: {card_file(path).name} is not beside it; a model is two files, copy both"
        )
    length, _, digest = metadata.get(GRAPH_KEY, "").partition(":")
    if not length.isdigit() or hashlib.sha256(data[: int(length)]).hexdigest() != digest:
        raise CheckpointMismatch(f"{path}: does not match its field {GRAPH_KEY!r}: it is damaged; copy it again")
    return ExportedNetwork(data, read_card(metadata[CARD_KEY], str(path)), str(path))
