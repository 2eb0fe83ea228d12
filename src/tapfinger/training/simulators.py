"""Encoders for training, and the batched simulators that they read."""

from __future__ import annotations

from collections.abc import Sequence

from tapfinger.errors import UnknownNameError
from tapfinger.policy.encoding.base import StateEncoder
from tapfinger.policy.encoding.by_profile import ProfileEncoder
from tapfinger.policy.encoding.by_type import TypeEncoder
from tapfinger.policy.encoding.profile_features import PROFILES
from tapfinger.policy.encoding.type_features import PAPER_FEATURES, TYPES
from tapfinger.profiles.greedy_options import ADVISERS
from tapfinger.profiles.site_tables import SiteTables
from tapfinger.sim.advised import AdvisedSim
from tapfinger.sim.batch import BatchSim
from tapfinger.sim.layout import GreedyPlan
from tapfinger.training.config import FEATURES, PAPER
from tapfinger.workloads.base import Workload
from tapfinger.workloads.world import World


def make_encoder(world: World, schema: str = TYPES.name, pending: int = 10) -> StateEncoder:
    """The encoder of a run's features for a world's clusters and types; see FEATURES of training.config."""
    if schema not in FEATURES:
        raise UnknownNameError("features", schema, FEATURES)
    context = world.context(0)
    if schema == PROFILES.name:
        return ProfileEncoder(SiteTables(context), pending)
    return TypeEncoder(context, pending, known=PAPER_FEATURES if schema == PAPER else None)


def make_sim(world: World, encoder: StateEncoder, workloads: Sequence[Workload]) -> BatchSim:
    """A simulator for the encoder: with advisers if their advice is among the features."""
    return (
        make_advised_sim(world, encoder, workloads)
        if isinstance(encoder, ProfileEncoder)
        else BatchSim(world, workloads, encoder.pending)
    )


def make_advised_sim(world: World, encoder: ProfileEncoder, workloads: Sequence[Workload]) -> AdvisedSim:
    """A simulator with advisers."""
    plans = [GreedyPlan(**options) for options in ADVISERS]
    return AdvisedSim(world, workloads, encoder.menus, plans, encoder.pending)
