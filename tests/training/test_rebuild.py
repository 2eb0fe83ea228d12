"""Models are retrained by the recipes on their cards, and an interrupted rebuild goes on."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from policy.models import small_network
from typer.testing import CliRunner

from tapfinger.commands import models
from tapfinger.commands.models import app
from tapfinger.config import load_scenario
from tapfinger.errors import ConfigError
from tapfinger.policy.card import PREVIOUS
from tapfinger.policy.export import export
from tapfinger.policy.exported import load_model, shipped_models
from tapfinger.training import rebuild as rebuilding
from tapfinger.training.config import TrainConfig
from tapfinger.training.rebuild import config_from, make_trainer, rebuild, stages_of
from tapfinger.training.trainer import Trainer


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tiny model whose recipe has two runs."""
    network, sizes, card = small_network(load_scenario("multi-3", ["tasks=12"]))
    first = {**asdict(TrainConfig(refinements=0, iterations=1)), "scenario": "multi-3"}
    last = asdict(TrainConfig(refinements=1, iterations=0, start=PREVIOUS, seed=3))
    card = replace(card, name="tiny", training=last, earlier=(first,))
    return export(network, sizes, card, tmp_path / "given" / "tiny.onnx")


def test_recipes_of_shipped_models_can_be_run(tmp_path: Path) -> None:
    for name, card in shipped_models().items():
        stages = stages_of(card, tmp_path)
        assert stages[-1].config.network == card.network
        assert stages[0].config.start == ""
        assert all(stage.config.start for stage in stages[1:])
        assert all(60 < stage.seconds() < 24 * 3600 for stage in stages), name
        assert replace(config_from(card.training), start=PREVIOUS) == replace(stages[-1].config, start=PREVIOUS)
    three, six = (stages_of(shipped_models()[name], tmp_path) for name in ("testbed-3", "testbed-6"))
    assert [s.folder for s in three] == [s.folder for s in six[: len(three)]]  # shared, so trained once


@pytest.mark.timeout(600)  # on a fresh checkout it may be the first to compile the kernels
def test_a_rebuild_goes_on_and_publishes(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, into = tmp_path / "runs", tmp_path / "into"
    arguments = ["rebuild", str(model), "--quick", "--out", str(out), "--into", str(into)]
    begun: list[str] = []

    def interrupted(stage: Any, *more: Any) -> Trainer:
        begun.append(stage.folder.name)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return make_trainer(stage, *more)

    card = load_model(str(model)).card
    stages = stages_of(card, out, quick=True)
    with pytest.raises(KeyboardInterrupt):
        rebuild(card, stages, lambda stage: interrupted(stage, None, None).run()[:2], into)
    assert [stage.finished for stage in stages] == [True, False]
    assert not into.exists()
    monkeypatch.setattr(rebuilding, "make_trainer", interrupted)  # begins with the second run
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert begun == [stages[0].folder.name, stages[1].folder.name, stages[1].folder.name]
    made = load_model(str(into / "tiny.onnx")).card
    assert made.evaluation
    # The whole recipe is on the new card, as run, and again without a path.
    assert [s.folder.name for s in stages_of(made, out)] == [s.folder.name for s in stages]
    assert made.training["start"] == PREVIOUS
    assert str(tmp_path) not in made.to_json()
    # Once published, nothing is trained or evaluated again.
    monkeypatch.setattr(rebuilding, "publish", lambda *_: pytest.fail("published twice"))
    assert CliRunner().invoke(app, arguments, catch_exceptions=False).exit_code == 0
    assert len(begun) == 3
    listed = CliRunner().invoke(app, [*arguments, "--list"], catch_exceptions=False).output
    assert listed.count("finished") == 2


def test_no_shipped_model_is_replaced_by_a_poor_one() -> None:
    with pytest.raises(ConfigError, match="give --into DIR"):
        models.rebuild(["multi-3"], quick=True, updates=None)
