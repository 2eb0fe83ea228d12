"""Several workers on one task: each gets a share of every batch, and all have the same weights.

Gradients are summed by our own all-reduce instead of DistributedDataParallel: shares may differ in size, and what
counts is the mean over the whole batch, however it is divided. So any number of workers takes the same steps as one
worker with the whole batch, except for the order of additions; and a single worker needs no process group.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import nn

from tapfinger.errors import ConfigError
from tapfinger.testbed.common import Allotment, RunOptions

#: Seconds that workers wait for each other.
PATIENCE = 120


@dataclass(frozen=True, slots=True)
class Workers:
    """One worker's view of all workers."""

    rank: int
    count: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this worker is the one that reports."""
        return self.rank == 0

    def mine(self, batch: torch.Tensor) -> torch.Tensor:
        """This worker's share of a batch."""
        return batch[self.rank :: self.count]

    def add(self, values: torch.Tensor) -> torch.Tensor:
        """Sum over all workers."""
        if self.count > 1:
            dist.all_reduce(values)
        return values

    def join_gradients(self, model: nn.Module, samples: int) -> None:
        """Turn gradients of sums over shares into gradients of the mean over the whole batch of ``samples``."""
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        joined = self.add(torch.cat([gradient.reshape(-1) for gradient in gradients])) / samples
        begin = 0
        for gradient in gradients:
            gradient.copy_(joined[begin : begin + gradient.numel()].view_as(gradient))
            begin += gradient.numel()


#: Does this worker's part of a task and returns its exit code.
Work = Callable[[Workers, RunOptions], int]


def run_workers(work: Work, options: RunOptions, granted: Allotment) -> int:
    """Run as one worker if torchrun started this process as such, else with as many workers as were allotted."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        here = int(os.environ.get("LOCAL_WORLD_SIZE", count))
        place = int(os.environ.get("LOCAL_RANK", rank))
        _leave(_as_worker(work, options, rank, count, place, granted.threads(here), "env://", granted))
    count, threads = granted.workers, granted.threads(granted.workers)
    if _cuda(granted) and count > torch.cuda.device_count():
        raise ConfigError(
            f"{count} gpus are allotted and {torch.cuda.device_count()} are visible; look at CUDA_VISIBLE_DEVICES"
        )
    if count == 1:
        torch.set_num_threads(threads)
        return work(Workers(0, 1, _device(0, granted)), options)
    return _together(work, options, count, threads, granted)


def _together(work: Work, options: RunOptions, count: int, threads: int, granted: Allotment) -> int:
    """Run with this process as the first worker and the others as its children."""
    # Forking saves each worker the import of torch; it is not possible with CUDA.
    start = (
        multiprocessing.get_context("spawn").Process if _cuda(granted) else multiprocessing.get_context("fork").Process
    )
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all on this machine, whatever its hostname resolves to
    with tempfile.TemporaryDirectory(prefix="tapfinger-workers-") as folder:
        meeting = (Path(folder) / "meeting").as_uri()
        others = [
            start(target=_child, args=(work, options, rank, count, rank, threads, meeting, granted), daemon=True)
            for rank in range(1, count)
        ]
        for process in others:
            process.start()
        code = _as_worker(work, options, 0, count, 0, threads, meeting, granted)
        for process in others:
            process.join(PATIENCE)
        return code or next((1 for process in others if process.exitcode), 0)


def _child(work: Work, *more: object) -> None:
    # A child that exits normally would also write its parent's unflushed output.
    os._exit(_as_worker(work, *more))  # type: ignore[arg-type]


def _leave(code: int) -> NoReturn:
    """End this process at once, after flushing its output.

    Threads of gloo can outlive the process group and still hold tensors. If one of them releases its tensor while
    the interpreter shuts down, the process aborts although its work is done; so the shutdown is skipped.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _as_worker(
    work: Work,
    options: RunOptions,
    rank: int,
    count: int,
    place: int,
    threads: int,
    meeting: str,
    granted: Allotment,
) -> int:
    torch.set_num_threads(threads)
    device = _device(place, granted)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo", meeting, timedelta(seconds=PATIENCE), count, rank
    )
    try:
        return work(Workers(rank, count, device), options)
    finally:
        dist.destroy_process_group()


def _cuda(granted: Allotment) -> bool:
    """Whether to use CUDA. Outside TapFinger the number of gpus is not given; one is used if available."""
    return granted.gpus != 0 and torch.cuda.is_available()


def _device(place: int, granted: Allotment) -> torch.device:
    return torch.device("cuda", place) if _cuda(granted) else torch.device("cpu")
