"""Puts the values of secrets into orders, just before they are sent: nothing else in a coordinator holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tapfinger.live.protocol.messages import Orders
from tapfinger.live.protocol.records import TaskRecord
from tapfinger.live.store.secrets import Secrets


def with_secrets(orders: Orders, tasks: Mapping[int, TaskRecord], secrets: Secrets) -> Orders:
    """The orders with the secrets of every attempt to start."""
    asking = {
        launch.id: record
        for launch in orders.starts
        if (record := tasks.get(launch.id[0])) is not None and record.spec.secrets
    }
    if not asking:
        return orders
    found = {ident: secrets.values(r.owner, r.spec.secrets, r.id) for ident, r in asking.items()}
    return replace(orders, starts=tuple(replace(one, secrets=found.get(one.id, {})) for one in orders.starts))
