"""The three tasks: short ones, really run."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tapfinger.progress import ProgressCheck, ProgressReader
from tapfinger.reporting import VARIABLE
from tapfinger.testbed import common, convnet, transformer, wav2vec
from tapfinger.testbed import image_classification as images
from tapfinger.testbed.common import RunOptions
from tapfinger.testbed.parallel import Workers
from tapfinger.testbed.training import Approach, LossCurve, TrainingPlan, train

ALONE = Workers(0, 1, torch.device("cpu"))
SHORT = RunOptions(0.05, 20_001)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def losses(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"val_loss (\d+\.\d+) of", text)]


@pytest.mark.parametrize("module", [convnet, transformer])
def test_training_reaches_its_target_and_is_the_same_again(
    module: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "reports"))
    plan: TrainingPlan = module.plan(SHORT)  # type: ignore[attr-defined]
    assert train(ALONE, SHORT, plan) == 0
    first = losses(capsys.readouterr().out)
    assert first[-1] <= plan.target < first[0]
    assert plan.target > plan.floor
    reports = ProgressReader(tmp_path / "reports").read()
    check = ProgressCheck()
    assert check.take(reports) == reports, check.faults
    assert reports[-1].progress == 1.0
    assert reports[-1].metrics["val_loss"] == pytest.approx(first[-1], abs=1e-3)
    assert train(ALONE, SHORT, module.plan(SHORT)) == 0  # type: ignore[attr-defined]
    assert losses(capsys.readouterr().out) == first


def test_a_target_that_is_never_reached_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    plan = transformer.plan(SHORT)
    # Four batches, of which none brings the loss below what is possible.
    hopeless = replace(plan, epochs=1, inputs=plan.inputs[:192], target=plan.floor - 1.0)
    assert train(ALONE, SHORT, hopeless) == 1
    assert "after 1 epochs the validation loss is still above its target" in capsys.readouterr().err


def test_no_model_beats_the_grammar() -> None:
    rules = transformer.grammar(20_001)
    assert torch.allclose(rules.sum(-1), torch.ones(transformer.LETTERS))
    pieces = transformer.text(rules, 300, 20_002)
    exact = -(rules * rules.clamp(min=1e-12).log()).sum(-1)
    # The mean over many letters of what was drawn is near the entropy of what could have been.
    assert transformer.entropy(rules, pieces) == pytest.approx(float(exact[pieces[:, :-1]].mean()), rel=0.02)


def test_the_transformer_does_not_look_ahead() -> None:
    torch.manual_seed(20_001)
    model = transformer.Language().eval()
    text = torch.randint(transformer.LETTERS, (1, transformer.LENGTH))
    other = text.clone()
    other[0, 40:] = (other[0, 40:] + 1) % transformer.LETTERS
    with torch.no_grad():
        one, two = model(text), model(other)
    assert torch.allclose(one[0, :40], two[0, :40], atol=1e-5)
    assert not torch.allclose(one[0, 40:], two[0, 40:], atol=1e-3)


def test_the_encoder_transcribes_what_is_said() -> None:
    torch.manual_seed(20_001)
    model, draw = wav2vec.Encoder().eval(), torch.Generator().manual_seed(20_001)
    words = wav2vec.vocabulary(draw)
    speech = wav2vec.speak(wav2vec.texts(8, words, draw), draw)
    # As its frames are known: decoding them gives the text.
    assert [wav2vec.decode(row, wav2vec.ALPHABET) for row in speech.frames.tolist()] == speech.texts
    before = wav2vec.transcribe(model, speech.samples)
    wav2vec.fit_head(model, wav2vec.speak(wav2vec.texts(wav2vec.FIT, words, draw), draw))
    after = wav2vec.transcribe(model, speech.samples)

    def rate(heard: list[str]) -> float:
        errors = [wav2vec.word_errors(said, got) for said, got in zip(speech.texts, heard, strict=True)]
        return sum(e for e, _ in errors) / sum(n for _, n in errors)

    assert rate(after) < 0.4 < rate(before)


def test_without_torch_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(common, "find_spec", lambda _name: None)
    assert images.main([]) == 2
    assert "pip install 'tapfinger[train]'" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--scale", "0"], ["--scale", "nan"], ["--scale", "7"], ["--seed", "-1"]])
def test_options_out_of_range_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert images.main(words) == 2
    assert capsys.readouterr().err.startswith(f"error: {words[0]} ")


amounts = st.floats(0.01, 10.0)


@given(st.sampled_from([0.0, 0.5, 1.0]), amounts, amounts, st.floats(0.0, 1.0))
def test_a_curve_and_its_inverse(bend: float, one: float, other: float, share: float) -> None:
    first, last = max(one, other) + 0.1, min(one, other)
    curve = LossCurve(bend)
    assert curve.share(first, last, curve.at(first, last, share)) == pytest.approx(share, abs=1e-6)


@given(
    st.sampled_from([0.0, 1.0]), st.lists(st.floats(0.0, 20.0), min_size=1), st.floats(0.1, 5.0), st.floats(0.0, 1.0)
)
def test_progress_never_falls_and_is_one_only_at_the_target(
    bend: float, found: list[float], gap: float, floor: float
) -> None:
    approach = Approach(floor + gap, floor, LossCurve(bend))
    before = 0.0
    for count, loss in enumerate(found, 1):
        progress = approach.take(loss)
        assert before <= progress <= 1.0
        assert math.isfinite(progress)
        assert (progress == 1.0) == (min(found[:count]) <= floor + gap)
        before = progress
