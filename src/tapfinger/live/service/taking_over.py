"""What a coordinator keeps on disk, and how a new leader restores its state machine from it."""

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
    """The store, the output of tasks and the audit log of one coordinator, which locks its directory."""

    def __init__(self, state: Path, config: LiveConfig) -> None:
        """Open or create them below ``state``; the store is where the configuration says, if it does."""
        make_directory(state)
        self._lock = hold(state, "coordinator; end it first: tapfinger down")
        self.store = Store(config.store or state / "store.db")
        self.audit = Audit(state / "audit.jsonl")
        #: Output in files; None if coordinators share the store, which then holds the output too.
        self.files = None if self.store.shared else Logs(state / "logs", config.max_log)
        self.logs: Output = self.files or StoredLogs(self.store)

    def close(self) -> None:
        """Close all files and release the directory."""
        self.store.close()
        self.audit.close()
        self._lock.close()


def make_machine(
    store: Store, site: Site, config: LiveConfig, schedulers: tuple[Scheduler, Scheduler], epoch: int, now: float
) -> Coordinator:
    """The state machine of a new leader. ``schedulers``: the one that decides, and its fallback."""
    origin = store.meta("origin")
    if origin is None:
        origin = now
        store.set_meta("origin", origin)
    longest = max(config.lease_seconds, float(store.meta("lease", 0.0)))
    if store.shared:
        longest += TERM  # the previous leader may have answered reports until the end of its term
    scheduler, fallback = schedulers
    slot = max(0, int((now - origin) / site.slot_seconds))
    machine = Coordinator(
        site,
        Rounds(site, scheduler, slot, fallback),
        Leases(config.lease_seconds, config.grace_seconds, config.beat_seconds),
        epoch,
        now,
        Predecessor(store.unended(), store.next_id(), store.meta("drained", []), origin, longest),
        config.max_losses,
    )
    # From now on, leases of this length are granted, and the next coordinator must wait that long.
    store.set_meta("lease", config.lease_seconds)
    return machine
