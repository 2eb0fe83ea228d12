"""Features are declared once; columns, the page and the digest follow, and models are told what they know."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tapfinger.config import load_scenario
from tapfinger.core.state import EdgeState
from tapfinger.errors import CheckpointMismatch
from tapfinger.policy.ablations import columns_of
from tapfinger.policy.actor_critic import config_for
from tapfinger.policy.card import _UNNAMED, SCHEMAS, _check_features
from tapfinger.policy.encoding.by_profile import ProfileEncoder
from tapfinger.policy.encoding.by_type import TypeEncoder
from tapfinger.policy.encoding.features import Feature, FeatureTable, Schema
from tapfinger.policy.encoding.profile_features import COLUMN_COUNTS, PROFILES
from tapfinger.policy.encoding.type_features import TYPES
from tapfinger.policy.exported import shipped_models
from tapfinger.profiles.site_tables import SiteTables
from tapfinger.schedulers.greedy_features import make_advisers
from tapfinger.training.config import FEATURES, PAPER
from tapfinger.workloads.world import build_world

ROOT = Path(__file__).parents[2]


def test_columns_follow_the_declaration() -> None:
    table = FeatureTable(
        Feature("a", "share", "One.", lambda s: s),
        Feature("b", "units", "Several.", lambda s: s, per="resource"),
        Feature("c", "share", "One more.", lambda s: s),
    )
    assert table.columns({"resource": 3}) == {"a": range(1), "b": range(1, 4), "c": range(4, 5)}
    assert table.width({"resource": 3}) == 5
    with pytest.raises(ValueError, match="declared twice: a, a"):
        FeatureTable(*table.features, table.features[0])


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=list(SCHEMAS))
def test_every_feature_says_what_it_is(schema: Schema) -> None:
    for table in schema.tables.values():
        for feature in table.features:
            assert feature.name.isidentifier()
            assert feature.name.islower()
            assert feature.unit
            assert feature.meaning[0].isupper()
            assert feature.meaning.endswith(".")
            assert feature.meaning.count(". ") == 0


def test_the_page_is_current() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "feature_docs.py"), "--check"]
    assert subprocess.run(command, check=False).returncode == 0


def test_names_of_schemas_are_those_of_the_configuration() -> None:
    assert tuple(name for name in FEATURES if name != PAPER) == tuple(SCHEMAS), "paper: fewer features of types"


def test_a_card_without_names_is_read_while_its_schema_is_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    data: dict[str, Any] = {"schema": "types-3"}
    monkeypatch.setitem(_UNNAMED, "types-3", ("types", SCHEMAS["types"].digest))
    _check_features(data, "old.onnx")
    assert data["features"] == SCHEMAS["types"].features
    monkeypatch.setitem(_UNNAMED, "types-3", ("types", "of other features"))
    with pytest.raises(CheckpointMismatch, match="have changed since"):
        _check_features({"schema": "types-3"}, "old.onnx")


def test_wording_may_change_and_nothing_else() -> None:
    def digest(name: str = "a", unit: str = "share", meaning: str = "One.", per: str = "") -> str:
        return Schema("s", "", {"cluster": FeatureTable(Feature(name, unit, meaning, lambda s: s, per))}).digest

    assert digest() == digest(meaning="The same.")
    assert len({digest(), digest(name="b"), digest(unit="slots"), digest(per="resource")}) == 4


def test_a_model_is_told_what_it_knows_in_its_own_order() -> None:
    world = build_world(load_scenario("multi-3"))
    snapshot = EdgeState(world.clusters, world.mode).snapshot()
    site = SiteTables(world.context(0))
    for schema, make, sizes in (
        (TYPES, lambda known: TypeEncoder(site.context, known=known), {"resource": 2, "task type": 2}),
        (PROFILES, lambda known: ProfileEncoder(site, 10, make_advisers(), known=known), COLUMN_COUNTS),
    ):
        whole = make(None).encode(snapshot).inputs
        fewer = {kind: features[:0:-1] for kind, features in schema.features.items()}  # all but the first, backwards
        some = make(fewer).encode(snapshot).inputs
        for kind, table in schema.tables.items():
            columns = [c for at in list(table.columns(sizes).values())[:0:-1] for c in at]
            np.testing.assert_array_equal(getattr(some, kind), getattr(whole, kind)[..., columns])
        assert getattr(make(schema.features), "_chosen") == {}  # noqa: B009 - nothing is picked where all is known


def test_a_model_that_knows_something_else_is_refused_by_name() -> None:
    known = {**TYPES.features, "cluster": [*TYPES.features["cluster"], "moon [phases]"]}
    context = build_world(load_scenario("multi-3")).context(0)
    with pytest.raises(CheckpointMismatch, match=r"model 'm': .* not made any more: moon \[phases\] of cluster"):
        TypeEncoder(context, known=known, who="model 'm'")
    assert TYPES.difference(known) == ["with moon [phases] of cluster"]
    turned = {**TYPES.features, "pair": TYPES.features["pair"][::-1]}
    assert TYPES.difference(turned) == ["another order of the features of pair"]


def test_ablations_choose_features_by_name() -> None:
    world = build_world(load_scenario("multi-3"))
    snapshot = EdgeState(world.clusters, world.mode).snapshot()
    config = config_for(TypeEncoder(world.context(0), padded=True).encode(snapshot).inputs, 1)
    whole, own = columns_of(config, hints=True), columns_of(config, hints=False)
    for kind, columns in whole.items():
        table, sizes = TYPES.tables[kind], {"resource": 2, "task type": 2}
        assert columns == list(range(table.width(sizes)))
        told = [f.name for f in table.features if f.of_others]
        assert sorted(set(columns) - set(own[kind])) == sorted(c for n in told for c in table.columns(sizes)[n])
        assert told


def test_cards_hold_recipes_and_no_paths() -> None:
    def strings(value: object) -> list[str]:
        if isinstance(value, str):
            return [value]
        items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return [s for item in items for s in strings(item)]

    folder = ROOT / "src" / "tapfinger" / "models"
    found = [*folder.glob("*.card.json"), *folder.glob("*/card.json")]
    assert len(found) > len(shipped_models())
    for path in found:
        card = json.loads(path.read_text(encoding="utf-8"))
        for text in strings(card):
            assert not text.startswith(("/", "~", "\\")), path
            assert ":\\" not in text, path
        assert card["schema_digest"], path
        assert card["training"]["network"] == card["network"], path
        assert [run["start"] for run in [*card["earlier"], card["training"]]] == [""] + ["previous"] * len(
            card["earlier"]
        ), path
    for path in folder.glob("*.onnx"):  # nor do graphs
        assert b"/work" not in path.read_bytes()
