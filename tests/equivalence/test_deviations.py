"""What the compiled judge says of a deviation is what the readable simulator makes of it."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
from strategies import spanning_world, stocked_world

from tapfinger.config import load_scenario
from tapfinger.core.conflict import resolve
from tapfinger.core.contract import Decision, Mode, Proposal
from tapfinger.core.model import Resources
from tapfinger.core.session import Session
from tapfinger.policy.ablations import build
from tapfinger.policy.actor_critic import config_for
from tapfinger.profiles.greedy_options import GREEDY_DEFAULTS
from tapfinger.schedulers.greedy import Greedy
from tapfinger.sim.batch import BatchSim
from tapfinger.sim.layout import GreedyPlan
from tapfinger.sim.run import new_session
from tapfinger.training.deviations import DeviationJudge
from tapfinger.training.network_policy import NetworkPolicy
from tapfinger.training.rollout import Deviations, play
from tapfinger.training.simulators import make_encoder
from tapfinger.workloads.world import World, build_world, draw_workload

#: All tasks of these small worlds have ended by then, so that the costs are whole.
LONG = 400


def decision(session: Session, task: np.ndarray, amounts: np.ndarray, score: np.ndarray) -> Decision:
    """A turn as the readable simulator takes it."""
    proposals = [
        Proposal(n, int(task[n]), Resources(amounts[n].tolist()), float(score[n]))
        for n in range(len(task))
        if task[n] >= 0
    ]
    snapshot = session.state.snapshot()
    return resolve(proposals, snapshot.free, {t.id: t.type.minimum for t in snapshot.queue}, snapshot.spans)


def cost_of(world: World, session: Session, turn: Decision) -> int:
    """Tasks in the system, slot by slot, if this turn is played and Greedy goes on."""
    session = copy.deepcopy(session)
    greedy = Greedy()
    greedy.reset(world.context(0))
    before = session.total_tasks_in_system
    if not session.turn(turn):
        # Clusters that were void stay so until the slot ends.
        active = {p.cluster for p in (*turn.placements, *turn.lost)}
        snapshot = session.state.snapshot()
        clusters = tuple(c if c.index in active else dataclasses.replace(c, up=False) for c in snapshot.clusters)
        session.turn(greedy.decide(dataclasses.replace(snapshot, clusters=clusters)))
    session.end_slot()
    while not session.done:
        session.play_round(greedy)
        session.end_slot()
    return session.total_tasks_in_system - before


@pytest.mark.parametrize(
    "name",
    ["multi-3", "synthetic-3", "hetero-6", "stocked-multi", "stocked-single", "spanning-multi", "spanning-single"],
)
def test_costs_and_grants(name: str) -> None:
    if name.startswith(("stocked", "spanning")):
        made, mode = name.split("-")
        world = (stocked_world if made == "stocked" else spanning_world)(mode, tasks=14)
    else:
        world = build_world(load_scenario(name, ["tasks=14"]))
    sim = BatchSim(world, [draw_workload(world, 5)])
    encoder = make_encoder(world)
    network = build("full", config_for(encoder.make(sim.observations), 1, hidden=16))
    policy = NetworkPolicy(network, 1, seed=0, deviations=3)
    judge = DeviationJudge(sim, [GreedyPlan(**GREEDY_DEFAULTS)])
    judge._horizon = LONG
    session = new_session(world, draw_workload(world, 5))
    compared, lost = 0, 0

    def check(sim: BatchSim, live: np.ndarray, others: Deviations, allocation: np.ndarray) -> Deviations:
        """Judge, compare, then play the turn in the readable session as well."""
        nonlocal compared, lost
        while session.state.slot < sim.worlds.slot[0]:  # slots in which nothing could start were not asked about
            session.end_slot()
        judged = judge(sim, live, others, allocation)
        padded = np.append(sim.observations.task[0], np.full((len(world.clusters), 1), -1), axis=1)
        wanted = np.take_along_axis(padded, others.choice[0], axis=1)  # (N, A)
        for n, a in np.ndindex(wanted.shape):
            turn = [wanted[:, 0].copy(), others.amounts[0, :, 0].copy(), others.score[0, :, 0].copy()]
            turn[0][n], turn[1][n], turn[2][n] = wanted[n, a], others.amounts[0, n, a], others.score[0, n, a]
            deviated = decision(session, *turn)
            assert judged.cost[0, n, a] == cost_of(world, session, deviated)
            assert judged.granted[0, n, a] == any(p.cluster == n for p in deviated.placements)
            compared += 1
            lost += len(deviated.lost)
        if session.turn(decision(session, wanted[:, 0], others.amounts[0, :, 0], others.score[0, :, 0])):
            session.end_slot()
        return judged

    class Checked(DeviationJudge):
        """The judge, watched."""

        def __call__(self, *turn: Any) -> Deviations:
            return check(*turn)

    play(sim, encoder, policy, max_slots=60, judge=Checked(sim, [GreedyPlan(**GREEDY_DEFAULTS)]))
    assert compared > 50
    assert lost or world.mode is Mode.MULTI
