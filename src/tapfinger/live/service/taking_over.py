"""What a coordinator keeps on disk, and how one that begins to lead takes up the work from there."""

from __future__ import annotations

from pathlib import Path

from tapfinger.core.contract import Scheduler
from tapfinger.live.config import LiveConfig
from tapfinger.live.coordinator.inputs import Leases
from tapfinger.live.coordinator.machine import Coordinator, Predecessor
from tapfinger.live.coordinator.rounds import Rounds
from tapfinger.live.coordinator.site import Site
from tapfinger.live.state_dir import hold, make_directory
from tapfinger.live.store.audit import Audit
from tapfinger.live.store.leadership import TERM
from tapfinger.live.store.logs import Logs, Output, StoredLogs
from tapfinger.live.store.store import Store


class Kept:
    """The store, the output of tasks and the audit log of one coordinator; nobody else may use its directory."""

    def __init__(self, state: Path, config: LiveConfig) -> None:
        """Open or create all of it below ``state``, or where the configuration says."""
        make_directory(state)
        self._lock = hold(state, "coordinator; end it first: tapfinger down")
        self.store = Store(config.store or state / "store.db")
        self.audit = Audit(state / "audit.jsonl")
        #: Output as files; None where coordinators share the store, which then has the output too.
        self.files = None if self.store.shared else Logs(state / "logs", config.max_log)
        self.logs: Output = self.files or StoredLogs(self.store)

    def close(self) -> None:
        """Let go of it."""
        self.store.close()
        self.audit.close()
        self._lock.close()


def make_machine(
    store: Store, site: Site, config: LiveConfig, schedulers: tuple[Scheduler, Scheduler], epoch: int, now: float
) -> Coordinator:
    """The state machine of a coordinator that leads from now on. ``schedulers``: the one that decides, the fallback."""
    origin = store.meta("origin")
    if origin is None:
        origin = now
        store.set_meta("origin", origin)
    longest = max(config.lease_seconds, float(store.meta("lease", 0.0)))
    if store.shared:
        longest += TERM  # a predecessor may have answered reports until then
    scheduler, fallback = schedulers
    slot = max(0, int((now - origin) / site.slot_seconds))
    machine = Coordinator(
        site,
        Rounds(site, scheduler, slot, fallback),
        Leases(config.lease_seconds, config.grace_seconds),
        epoch,
        now,
        Predecessor(store.unended(), store.next_id(), store.meta("drained", []), origin, longest),
    )
    # From now on leases of this length are given; the next coordinator must wait as long.
    store.set_meta("lease", config.lease_seconds)
    return machine
