"""A program for test_parallel: one step of the ConvNet on a joined batch; the first worker prints what came of it."""

from __future__ import annotations

import json
import sys

import torch

from tapfinger.testbed import convnet, parallel
from tapfinger.testbed.common import Allotment, RunOptions


def work(workers: parallel.Workers, options: RunOptions) -> int:
    plan = convnet.plan(options)
    batch = torch.arange(7)  # shares of different size
    mine = workers.mine(batch)
    plan.loss(plan.model, plan.inputs[mine], plan.labels[mine]).backward()
    workers.join_gradients(plan.model, len(batch))
    found = torch.cat([p.grad.flatten() for p in plan.model.parameters() if p.grad is not None])
    total = float(workers.add(torch.tensor(float(len(mine)))))
    if workers.first:
        sys.stdout.write(json.dumps({"gradient": found.tolist(), "samples": total, "workers": workers.count}))
    return 0 if torch.isfinite(found).all() else 1


if __name__ == "__main__":
    sys.exit(parallel.run_workers(work, RunOptions(seed=20_001), Allotment(1, int(sys.argv[1]))))
