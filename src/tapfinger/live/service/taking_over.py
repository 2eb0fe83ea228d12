"""What a coordinator keeps on disk, and how a new leader restores its state machine from it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from tapfinger.core.contract import Scheduler
from tapfinger.errors import StoreFailed, TapfingerError
from tapfinger.live.agent.leases import replace_file
from tapfinger.live.config import LiveConfig
from tapfinger.live.coordinator.inputs import Leases
from tapfinger.live.coordinator.late_results import LINES, lost_in
from tapfinger.live.coordinator.machine import Coordinator, Predecessor
from tapfinger.live.coordinator.rounds import Rounds
from tapfinger.live.coordinator.site import Site
from tapfinger.live.state_dir import hold, make_directory
from tapfinger.live.store import copies
from tapfinger.live.store.audit import Audit
from tapfinger.live.store.leadership import TERM
from tapfinger.live.store.logs import Logs, Output, StoredLogs
from tapfinger.live.store.retention import GB, Limits, Retention
from tapfinger.live.store.store import COPY, NEEDS, OLDER, Store

logger = logging.getLogger(__name__)


class Kept:
    """The store, the output of tasks and the audit log of one coordinator, which locks its directory."""

    def __init__(self, state: Path, config: LiveConfig) -> None:
        """Open or create them below ``state``; the store is where the configuration says, if it does."""
        make_directory(state)
        self._lock = hold(state, "coordinator; end it first: tapfinger down")
        try:
            if not config.store:
                copies.finish(state / "store.db")
            self.store = Store(config.store or state / "store.db")
        except BaseException:
            self._lock.close()
            raise
        try:
            self.audit = Audit(state / "audit.jsonl")
            #: Output in files; None if coordinators share the store, which then holds the output too.
            self.files = None if self.store.shared else Logs(state / "logs", config.max_log)
        except OSError as error:
            self.store.close()
            self._lock.close()
            raise unwritable(state, error) from None
        self.logs: Output = self.files or StoredLogs(self.store)

    def retention(self, config: LiveConfig, clock: Callable[[], float]) -> Retention:
        """What removes the old, as configured."""
        limits = Limits(config.keep_days, config.keep_tasks, config.keep_logs_gb * GB, config.keep_tasks_gb * GB)
        return Retention(self.store, self.files, limits, clock)

    def close(self) -> None:
        """Close all files and release the directory."""
        self.store.close()
        self.audit.close()
        self._lock.close()


def unwritable(state: Path, error: OSError) -> StoreFailed:
    """A state directory that cannot be written."""
    return StoreFailed(
        f"{error.filename or state} cannot be written: {error.strerror or error}. Make room on the disk, or give this "
        f"user the right to write to {state}; then start again"
    )


def take_epoch(store: Store, state: Path, url: str) -> int | None:
    """Lead, unless another coordinator does. Returns an epoch above all that agents may have heard of, or None.

    The last epoch is noted beside the store, too. A store that does not know of it is an older copy that someone has
    put back, and so is one that says so: ids that it would give out may be in use, so some are left out.
    """
    path = state / "epoch"
    try:
        noted = int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        noted = 0
    known = store.epoch
    older = ""
    if known < noted:
        older = f"this coordinator has led in epoch {noted}, and the store is of epoch {known}"
    elif store.meta(COPY):
        older = "the store is a copy that 'tapfinger backup' has made"
    epoch = store.lead(url, noted, older)
    if epoch is None:
        return None
    if older:
        logger.warning(
            "%s is older than what this coordinator had before: tasks and tokens since then are not in it, and its "
            "next task has the number %d",
            store.label,
            store.next_id(),
        )
    try:
        replace_file(path, epoch, sync=True)
    except OSError as error:
        raise unwritable(state, error) from None
    return epoch


def make_machine(
    store: Store, site: Site, config: LiveConfig, schedulers: tuple[Scheduler, Scheduler], epoch: int, now: float
) -> Coordinator:
    """The state machine of a new leader. ``schedulers``: the one that decides, and its fallback."""
    with store.understood():
        left = _left(store, config, now)
    scheduler, fallback = schedulers
    slot = max(0, int((now - left.origin) / site.slot_seconds))
    leases = Leases(config.lease_seconds, config.grace_seconds, config.beat_seconds)
    try:
        rounds = Rounds(site, scheduler, slot, fallback)
        machine = Coordinator(site, rounds, leases, epoch, now, left, config.max_losses)
    except TapfingerError:
        raise
    except Exception as error:
        logger.critical("an error that nobody foresaw, in taking up %s: %s", store.label, error, exc_info=error)
        raise _unforeseen(store, error) from error
    # From now on, leases of this length are granted, and the next coordinator must wait that long.
    store.set_meta("lease", config.lease_seconds)
    return machine


def _left(store: Store, config: LiveConfig, now: float) -> Predecessor:
    """Read what the previous leader has left."""
    origin = store.meta("origin")
    if origin is None:
        origin = now
        store.set_meta("origin", origin)
    longest = max(config.lease_seconds, float(store.meta("lease", 0.0)))
    if store.shared:
        longest += TERM  # the previous leader may have answered reports until the end of its term
    recent = store.history(store.line_before(LINES), LINES)
    return Predecessor(
        store.unended(),
        store.next_id(),
        list(store.meta("drained", [])),
        float(origin),
        longest,
        lost_in(event for _, event in recent),
        store.meta(OLDER),
        [(o, kind, {n: float(amount) for n, amount in least.items()}) for o, kind, least in store.meta(NEEDS, [])],
    )


def _unforeseen(store: Store, error: Exception) -> StoreFailed:
    """What could be read, but not be taken up: that is not the store's fault."""
    return StoreFailed(
        f"the coordinator cannot take up the tasks of {store.label}, which is a fault of the program and not of the "
        f"store: {type(error).__name__}: {' '.join(str(error).split())}. The store was not touched, so keep it. Report "
        "this with the coordinator's log; the version that ran before may be able to go on with it"
    )
