"""The card of a trained network: what it is, what it was trained on and how well it did. Plain data, no torch.

A model is two files: NAME.onnx with the graph, and NAME.card.json with the card next to it.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tapfinger import __version__
from tapfinger.config import Scenario
from tapfinger.errors import CheckpointMismatch
from tapfinger.policy.encoding.features import Schema, digest_of
from tapfinger.policy.encoding.profile_features import PROFILES
from tapfinger.policy.encoding.type_features import TYPES

#: Required type of each field of a card when it is read back.
_KINDS: dict[str, type] = {
    "name": str,
    "network": str,
    "schema": str,
    "resources": list,
    "task_types": list,
    "scenario": dict,
    "config": dict,
    "seeds": list,
    "evaluation": dict,
    "versions": dict,
}


#: Feature schemas of this version, by name.
SCHEMAS: dict[str, Schema] = {schema.name: schema for schema in (TYPES, PROFILES)}

#: Schemas of cards written before features had names: the current name, and the digest of its features back then.
_UNNAMED = {"types-3": ("types", "1aa8c42add9c4358"), "profiles-1": ("profiles", "5bbd9536e147243b")}

#: ``start`` of a run that begins with the network of the run before it; a card never holds a path.
PREVIOUS = "previous"

#: What surrounds a network when it decides: "paper" is the network and Bayes' rule, and nothing else.
DEFAULT_PIPELINE = "default"
PIPELINES = (DEFAULT_PIPELINE, "paper")


@dataclass(frozen=True)
class Card:
    """Everything about a network except its weights."""

    #: Name of the network, and of the shipped model.
    name: str
    #: "full" or the name of an ablation.
    network: str
    #: Name of the feature schema.
    schema: str
    #: Names of the resources, in the order of the amounts.
    resources: tuple[str, ...]
    #: Names of the task types, in the order of the one-hot columns.
    task_types: tuple[str, ...]
    #: Resolved configuration of the scenario it was trained on.
    scenario: dict[str, Any]
    #: Sizes of the network; filled in when it is saved or exported.
    config: dict[str, Any] = field(default_factory=dict)
    #: Training seeds.
    seeds: tuple[int, ...] = ()
    #: Settings of the training run; of the last one if ``earlier`` is not empty.
    training: dict[str, Any] = field(default_factory=dict)
    #: Settings of the runs before it, each with its ``scenario``; each starts from the best network of the one before.
    earlier: tuple[dict[str, Any], ...] = ()
    #: Where the recipe does not tell everything that happened.
    notes: str = ""
    #: Name of the pipeline that the network decides in, unless another one is asked for.
    pipeline: str = DEFAULT_PIPELINE
    #: Mean completion times on unseen workloads: seeds, tapfinger, rivals, and per_seed of tapfinger.
    evaluation: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    #: Features given to the network, by kind of node, and their digest; by default all of the schema.
    features: dict[str, list[str]] = field(default_factory=dict)
    schema_digest: str = ""

    def __post_init__(self) -> None:
        """Fill in what follows from the schema."""
        features = self.features or SCHEMAS[self.schema].features
        object.__setattr__(self, "features", features)
        object.__setattr__(self, "schema_digest", self.schema_digest or digest_of(features))

    @property
    def capacities(self) -> list[tuple[float, ...]]:
        """Natural amounts of the clusters it was trained on, smallest first; empty if the scenario has none."""
        clusters = self.scenario.get("clusters", ())
        amounts = [(tuple(c["capacity"][name] for name in self.resources), c.get("count", 1)) for c in clusters]
        return sorted(capacity for capacity, count in amounts for _ in range(count))

    def size(self, key: str) -> int:
        """An integer of the network's config."""
        value = self.config.get(key)
        if type(value) is not int:
            raise CheckpointMismatch(
                f"model {self.name!r}: config.{key} = {value!r} must be a whole number; export it again"
            )
        return value

    def to_json(self) -> str:
        """The card as text; ``read_card`` reads it back."""
        return json.dumps(asdict(self), indent=2, sort_keys=True)


def make_card(
    scenario: Scenario,
    name: str | None = None,
    network: str = "full",
    seeds: Iterable[int] = (),
    evaluation: Mapping[str, Any] | None = None,
    schema: str = TYPES.name,
) -> Card:
    """The card of a network trained on a scenario, by this version on this machine."""
    return Card(
        name=name or scenario.name,
        network=network,
        schema=schema,
        resources=tuple(scenario.resources),
        task_types=_type_names(scenario),
        scenario=scenario.resolved(),
        seeds=tuple(seeds),
        evaluation=dict(evaluation or {}),
        versions=_versions(),
    )


def _type_names(scenario: Scenario) -> tuple[str, ...]:
    """Names of the task types that schedulers are told of: also the higher steps of ladders, where there are any."""
    if not any(t.needs for t in scenario.task_types):
        return tuple(t.name for t in scenario.task_types)
    from tapfinger.workloads.world import build_world

    return tuple(t.name for t in build_world(scenario).task_types)


def read_card(text: str, source: str) -> Card:
    """A card from its text; rejects one that is damaged or has another input schema."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise CheckpointMismatch(f"{source}: the card is not valid JSON ({error}); save or export it again") from None
    if not isinstance(data, dict):
        raise CheckpointMismatch(f"{source}: the card must be an object; save or export it again")
    for name, kind in _KINDS.items():
        if not isinstance(data.get(name), kind):
            got = repr(data[name]) if name in data else "nothing"
            raise CheckpointMismatch(f"{source}: field {name!r} of the card must be a {kind.__name__}, got {got}")
    _check_features(data, source)
    if data.get("pipeline", DEFAULT_PIPELINE) not in PIPELINES:
        raise CheckpointMismatch(
            f"{source}: field 'pipeline' of the card must be {' or '.join(PIPELINES)}, got {data['pipeline']!r}"
        )
    known = {f.name for f in fields(Card)}
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in data.items() if name in known}
    return Card(**values)


def _check_features(data: dict[str, Any], source: str) -> None:
    """Reject a card with features that this version does not provide; the message names them."""
    name, digest = _UNNAMED.get(data["schema"], (data["schema"], ""))
    if name not in SCHEMAS:
        raise CheckpointMismatch(
            f"{source}: field 'schema' of the card is {name!r}, but this version makes inputs of "
            f"{' or '.join(map(repr, SCHEMAS))}; train it again or use the version that made it"
        )
    schema = SCHEMAS[name]
    features = data.get("features")
    if features is None:
        if schema.digest != digest:
            raise CheckpointMismatch(
                f"{source}: the card does not name its features, and those of schema {name!r} have changed since "
                f"(digest {digest or 'unknown'}, now {schema.digest}); export it again with the version that made it"
            )
        features = schema.features
    if not isinstance(features, dict) or data.get("schema_digest", digest) != digest_of(features):
        raise CheckpointMismatch(
            f"{source}: field 'schema_digest' of the card does not match its features: it is damaged"
        )
    schema.check(features, source)
    data |= {"schema": name, "features": features, "schema_digest": digest_of(features)}


def _versions() -> dict[str, str]:
    found = {"tapfinger": __version__, "python": platform.python_version()}
    for package in ("numpy", "torch"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # a card can be made without torch
            continue
    return found
