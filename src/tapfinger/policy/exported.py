"""Networks as files that run without torch: one ONNX graph with its card inside. The only user of onnxruntime."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tapfinger.errors import CheckpointMismatch, MissingDependency, UnknownNameError
from tapfinger.policy.card import Card, read_card
from tapfinger.policy.inputs import Inputs

#: Metadata of the file: the card, and "length:sha256" of the bytes that hold the graph.
CARD_KEY = "tapfinger.card"
GRAPH_KEY = "tapfinger.graph"

#: Both as they stand in the file: key, tag and length of the value (low seven bits first, top bit: more follow), value.
_CARD_ENTRY = re.compile(re.escape(CARD_KEY).encode() + rb"\x12([\x80-\xff]{0,4}[\x00-\x7f])", re.DOTALL)
_GRAPH_ENTRY = re.compile(re.escape(GRAPH_KEY).encode() + rb"\x12.(\d{1,12}):([0-9a-f]{64})", re.DOTALL)


class Scores(NamedTuple):
    """The network's outputs that acting needs; shapes as in policy.actor_critic.Outputs."""

    task_logits: Any
    amount_logits: Any
    amount_keys: Any
    amount_queries: Any


#: What acting needs of the network's outputs, its first ones; the value is for training.
ACTING = Scores._fields


class Acts(NamedTuple):
    """What every cluster wants to do."""

    place: npt.NDArray[np.int64]  # (B, N): the pending place, K for void
    amounts: npt.NDArray[np.int64]  # (B, N, R): zero when void
    score: npt.NDArray[np.float64]  # (B, N): Pr(place)


class Graph:
    """A network that can be run."""

    def __init__(self, data: bytes, source: str) -> None:
        """``source``: where the bytes are from, for messages."""
        self._session, self._only_these = _session(data, source)
        # Inputs that a network does not use are not in its graph.
        self._takes = tuple(i.name for i in self._session.get_inputs())
        gives = {o.name for o in self._session.get_outputs()}
        #: How many layers' attention the file can tell; 0 without a graph.
        self.layers = next(n for n in range(len(gives) + 1) if not gives.issuperset(attention_names(n + 1)))

    def run(self, inputs: Inputs) -> Scores:
        """Scores of a batch of any size the network takes."""
        return Scores(*self._run(ACTING, inputs))

    def attention(self, inputs: Inputs) -> npt.NDArray[np.float32]:
        """(layers, 2, B, heads, N, M): the fields of policy.han.Attention, layer by layer. For explanations."""
        found = self._run(attention_names(self.layers), inputs)
        return np.array(found).reshape(self.layers, 2, *found[0].shape)

    def _run(self, outputs: Sequence[str], inputs: Inputs) -> list[Any]:
        feeds = {name: getattr(inputs, name) for name in self._takes}
        return list(self._session.run(outputs, feeds, self._only_these))


class ExportedNetwork(Graph):
    """One loaded model file."""

    def __init__(self, data: bytes, source: str) -> None:
        """``source``: where the bytes are from, for messages."""
        self.card: Card = _checked_card(data, source)
        super().__init__(data, source)


def attention_names(layers: int) -> list[str]:
    """Names of the outputs that hold attention, of clusters and of tasks in turn."""
    return [f"attention_{whose}_{layer}" for layer in range(layers) for whose in ("of_clusters", "of_tasks")]


def _session(data: bytes, source: str) -> tuple[Any, Any]:
    """The graph, and how to run only the part of it that the wanted outputs need."""
    try:
        import onnxruntime  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        raise MissingDependency("running a trained network needs onnxruntime: pip install onnxruntime") from None

    options = onnxruntime.SessionOptions()
    # One thread: the graph is small, and runs are made side by side.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    # Sizes change from turn to turn, so plans of memory, one for each, would only pile up.
    options.enable_mem_pattern = False
    options.log_severity_level = 4
    running = onnxruntime.RunOptions()
    running.only_execute_path_to_fetches = True
    try:
        return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"]), running
    except Exception as error:  # onnxruntime's errors have no common base
        reason = str(error).splitlines()[0]
        raise CheckpointMismatch(f"{source}: is damaged or no ONNX model ({reason}); export or copy it anew") from None


def _checked_card(data: bytes, source: str) -> Card:
    """The card, after a look at the graph's digest: onnxruntime trusts its files, and must not see a damaged one."""
    found = _GRAPH_ENTRY.search(data)
    if found is None:
        raise CheckpointMismatch(
            f"{source}: has no field {GRAPH_KEY!r}: it is damaged or was not made by tapfinger.policy.export"
        )
    length, digest = int(found[1]), found[2].decode()
    if hashlib.sha256(data[:length]).hexdigest() != digest:
        raise CheckpointMismatch(f"{source}: does not match its field {GRAPH_KEY!r}: it is damaged; copy it anew")
    # Read from the bytes, since a session takes a hundred times longer to make.
    entry = _CARD_ENTRY.search(data, length)
    if entry is None:
        raise CheckpointMismatch(f"{source}: has no field {CARD_KEY!r}; export it anew")
    size = sum((byte & 127) << (7 * i) for i, byte in enumerate(entry[1]))
    return read_card(data[entry.end() : entry.end() + size].decode(errors="replace"), source)


def shipped_models() -> dict[str, Card]:
    """Cards of the models that ship with the package, by name."""
    cards = {}
    for name in _shipped_names():
        with _shipped_file(name) as path:
            cards[name] = _card(*_state_of(path))
    return cards


def _shipped_names() -> list[str]:
    folder = resources.files("tapfinger") / "models"
    return sorted(f.name.removesuffix(".onnx") for f in folder.iterdir() if f.name.endswith(".onnx"))


def _shipped_file(name: str) -> AbstractContextManager[Path]:
    return resources.as_file(resources.files("tapfinger") / "models" / f"{name}.onnx")


def load_model(model: str) -> ExportedNetwork:
    """A model by its shipped name, or from a file (.onnx); an unchanged file is loaded once."""
    if model.endswith(".onnx"):
        return _load(*_state_of(Path(model)))
    if model not in _shipped_names():
        raise UnknownNameError("model", model, [*_shipped_names(), "PATH.onnx"])
    with _shipped_file(model) as path:
        return _load(*_state_of(path))


def _state_of(path: Path) -> tuple[str, int, int]:
    """Path, time of change and size: the same as long as the file is."""
    try:
        status = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from None
    return str(path.resolve()), status.st_mtime_ns, status.st_size


def _unreadable(path: str | Path, error: OSError) -> CheckpointMismatch:
    return CheckpointMismatch(f"{path}: cannot be read ({error.strerror}); give an exported model")


@lru_cache(maxsize=8)
def _load(path: str, changed: int, size: int) -> ExportedNetwork:  # noqa: ARG001 - part of the key
    return ExportedNetwork(_read(path), path)


@lru_cache(maxsize=128)
def _card(path: str, changed: int, size: int) -> Card:  # noqa: ARG001 - part of the key
    return _checked_card(_read(path), path)


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from None


def best_actions(
    scores: Scores | Any, inputs: Inputs, accelerator: int, rng: np.random.Generator | None = None
) -> Acts:
    """The most likely action of every cluster: ``policy.distributions.draw`` in numpy.

    ``rng`` draws the task instead (for a network whose task is random by design); amounts are the best ones.
    A cluster for which the network gives no numbers is void, and its score is NaN.
    """
    batch, clusters, places = inputs.startable.shape
    agent = np.arange(batch * clusters)  # (B * N): one axis is faster to index than two
    logits = scores.task_logits.reshape(len(agent), places + 1)
    probabilities = softmax(logits)
    place = _draw(probabilities, rng) if rng is not None else logits.argmax(axis=1)
    score = probabilities[agent, place]
    # A network that has gone wrong must not choose what is not there, nor with a score that is no number.
    at = agent * places + np.minimum(place, places - 1)
    placed = inputs.startable.reshape(-1)[at] & (place < places) & np.isfinite(score)
    amounts, numbers = _best_amounts(
        Scores(logits, *(_rows(array, at) for array in scores[1:4])),
        _rows(inputs.minimum, at),
        _rows(inputs.largest, at),
        accelerator,
    )
    score[placed & ~numbers] = np.nan
    placed &= np.isfinite(score)
    place[~placed] = places
    amounts *= placed[:, None]
    return Acts(place.reshape(batch, clusters), amounts.reshape(batch, clusters, -1), score.reshape(batch, clusters))


def _rows(array: Any, at: Any) -> Any:
    """These places of an array (B, N, K, ...)."""
    return array.reshape(-1, *array.shape[3:]).take(at, axis=0)


def _best_amounts(scores: Scores, low: Any, high: Any, accelerator: int) -> tuple[Any, Any]:
    """Amounts (agents, R) of the tasks that were chosen, and whether their scores are numbers (agents,)."""
    agent, column = np.arange(len(low)), np.arange(scores.amount_logits.shape[2])
    legal = (column >= low[..., None]) & (column <= high[..., None])  # (agents, R, A)
    earlier = np.zeros_like(scores.amount_keys[:, 0, 0])  # (agents, r): sum of the keys of amounts chosen
    amounts = np.empty_like(low)
    numbers = np.ones(len(low), dtype=np.bool_)
    for r in [accelerator, *(r for r in range(low.shape[1]) if r != accelerator)]:
        given = scores.amount_logits[:, r] + (scores.amount_queries[:, r] @ earlier[..., None])[..., 0]
        chosen = np.where(legal[:, r], given, -np.inf).argmax(axis=1)
        numbers &= ~np.isnan(given[agent, chosen])
        amounts[:, r] = chosen
        earlier = earlier + scores.amount_keys[agent, r, chosen]
    # A head with too few columns for this range has no legal one; the nearest legal amount then.
    return np.minimum(np.maximum(amounts, low), high), numbers


def softmax(logits: Any) -> npt.NDArray[np.float64]:
    """Probabilities along the last axis."""
    wide = np.asarray(logits, dtype=np.float64)
    with np.errstate(invalid="ignore"):  # infinite scores end as NaN, which best_actions takes for void
        weights = np.exp(wide - wide.max(axis=-1, keepdims=True))
        return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def _draw(probabilities: npt.NDArray[np.float64], rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """One index of the last axis; never one of probability zero."""
    steps = probabilities.cumsum(axis=-1)
    at = rng.random(steps.shape[:-1])[..., None] * steps[..., -1:]
    return np.asarray(np.minimum((steps <= at).sum(axis=-1), steps.shape[-1] - 1))
