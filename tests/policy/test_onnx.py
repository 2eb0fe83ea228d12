"""The network leaves torch as one ONNX graph whose sizes are free."""

from __future__ import annotations

import warnings

import numpy as np
import onnxruntime
import pytest
import torch
from policy.states import random_inputs

from tapfinger.policy.ablations import build
from tapfinger.policy.actor_critic import Outputs, Positional, as_tensors, config_for
from tapfinger.policy.encoding.inputs import Inputs

AXES = {"cluster": "BN", "pending": "BM", "pending_mask": "BM", "running": "BNS", "running_mask": "BNS"}
OTHER_SIZES = [(1, 1, 2, 3, 5), (3, 6, 4, 7, 40), (2, 4, 10, 1, 9)]
SAME_SIZES = [(1, 3, 5, 4, 16), (7, 3, 5, 4, 40)]


def export(net, inputs, path):
    axes = {name: dict(enumerate(AXES.get(name, "BNK"))) for name in Inputs._fields}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the classic exporter says that it is one
        torch.onnx.export(
            Positional(net),
            tuple(inputs),
            str(path),
            input_names=list(Inputs._fields),
            output_names=list(Outputs._fields),
            dynamic_axes=axes,
            opset_version=17,
            dynamo=False,
        )
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(
    ("name", "changes", "sizes"),
    [
        ("full", {}, OTHER_SIZES),
        ("full", {"allocation": "joint", "units": 40}, OTHER_SIZES),
        ("no-han", {}, OTHER_SIZES),
        ("no-self", {}, OTHER_SIZES),
        ("no-pointer", {}, OTHER_SIZES),
        ("vanilla", {}, SAME_SIZES),
        ("full", {"separate_actors": 3}, SAME_SIZES),
    ],
)
def test_export_agrees_with_torch_at_other_sizes(name, changes, sizes, tmp_path):
    example = as_tensors(random_inputs(0, batch=2))
    torch.manual_seed(0)
    net = build(name, config_for(example, 1, hidden=16, **changes)).eval()
    session = export(net, example, tmp_path / "net.onnx")
    taken = {i.name for i in session.get_inputs()}
    for seed, (batch, clusters, places, running, units) in enumerate(sizes):
        inputs = random_inputs(seed, batch, clusters, places, running=running, units=units)
        got = session.run(Outputs._fields, {k: v for k, v in inputs._asdict().items() if k in taken})
        with torch.no_grad():
            want = net(as_tensors(inputs))
        for field, mine, other in zip(Outputs._fields, got, want, strict=True):
            np.testing.assert_allclose(mine, other.numpy(), atol=1e-4, rtol=1e-4, err_msg=field)
