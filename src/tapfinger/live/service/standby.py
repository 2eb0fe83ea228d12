"""What a standby can tell about the site, from what the leader has saved in the store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tapfinger.core.contract import Phase
from tapfinger.core.model import Resources
from tapfinger.live.coordinator.agent_links import smaller
from tapfinger.live.coordinator.site import Site
from tapfinger.live.store.store import Store


def links(clusters: Iterable[dict[str, object]]) -> dict[str, Any]:
    """The parts of the clusters to save for standbys; tasks are in the store anyway."""
    kept = ("agent", "connected", "drained", "isolates", "disagreement")
    return {str(c["name"]): {key: c[key] for key in kept} for c in clusters}


def clusters(site: Site, store: Store) -> list[dict[str, object]]:
    """Every cluster, as the leader shows it to people, without what only the leader knows: the end of its lease, and
    when its agent was last heard."""
    on: dict[str | None, list[tuple[int, Resources]]] = {}
    for record in store.tasks([Phase.PLACED, Phase.RUNNING], 1_000_000):
        on.setdefault(record.cluster, []).append((record.id, Resources(record.allocation or ())))
    kept = store.meta("links", {})
    natural = site.resources.natural
    found: list[dict[str, object]] = []
    for cluster in site.clusters:
        link = kept.get(cluster.name, {})
        reported = (link.get("disagreement") or {}).get("agent")
        capacity = free = smaller(reported, cluster.capacity, site.resources)
        for _, size in on.get(cluster.name, []):
            free = free - size
        found.append(
            {
                "name": cluster.name,
                "part_of": cluster.part_of,
                "kind": cluster.hardware,
                "capacity": natural(capacity),
                "free": natural(Resources([max(0, amount) for amount in free])),
                "others": None,
                "tasks": sorted(ident for ident, _ in on.get(cluster.name, [])),
                "agent": None,
                "connected": False,
                "last_heard": None,
                "drained": False,
                "isolates": None,
                "trouble": "",
                "lease_ends_in": None,
                "disagreement": None,
                **link,
            }
        )
    return found
