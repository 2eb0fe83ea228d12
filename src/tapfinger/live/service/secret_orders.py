"""Puts the values of secrets into orders, just before they are sent: nothing else in a coordinator holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tapfinger.live.protocol.messages import Orders
from tapfinger.live.protocol.records import TaskRecord
from tapfinger.live.store.secrets import Secrets


def with_secrets(orders: Orders, tasks: Mapping[int, TaskRecord], secrets: Secrets) -> Orders:
    """The orders with the secrets of every attempt to start.

    ``tasks``: those that have not ended. Attempts of others are left out: they must not run without their secrets.
    """
    starts = [(one, tasks[one.id[0]]) for one in orders.starts if one.id[0] in tasks]
    if len(starts) == len(orders.starts) and not any(record.spec.secrets for _, record in starts):
        return orders
    filled = (
        replace(one, secrets=secrets.values(r.owner, r.spec.secrets, r.id)) if r.spec.secrets else one
        for one, r in starts
    )
    return replace(orders, starts=tuple(filled))
