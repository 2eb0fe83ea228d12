"""The history as typed events: JSON and back, words at the edge, and stores that older versions wrote."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from live.protocol import play

import tapfinger
from tapfinger.live.protocol import events, words
from tapfinger.live.protocol.events import LiveEvent
from tapfinger.live.store import migrations
from tapfinger.live.store.store import Store

GROUNDS = events.Grounds(30.0, 60.0, 7200.0, {"cpu": 1.0}, {"cpu": 4.0, "gpu": 0.0}, 1, {"cpu": 2.5}, 2, "greedy")
#: One of every kind, with the words for it.
EVERY: list[tuple[LiveEvent, str]] = [
    (events.Submitted(1.5, 1, type="t", minimum={"cpu": 2.0}, clusters=("a", "b")), ""),
    (
        events.Granted(2.0, 1, 1, "a", {"cpu": 2.0, "gpu": 0.0}, GROUNDS),
        "2 cpu, 0 gpu: 30 s expected (60 s with 1 cpu, 2.0 h with 4 cpu); 1 other waited, 2.5 cpu free there, "
        "2 clusters had room; decided by greedy",
    ),
    (events.Granted(2.0, 1, 1, "a", {"cpu": 0.5}, note="10 s expected; ü"), "0.5 cpu: 10 s expected; ü"),
    (events.AttemptStarted(3.0, 1, 1, "a"), ""),
    (events.AttemptResizing(3.0, 1, 1, "a", {"cpu": 4.0}), "4 cpu"),
    (events.AttemptResized(3.0, 1, 1, "a", {"cpu": 4.0, "gpu": 1.0}), "4 cpu, 1 gpu"),
    (
        events.AttemptEnded(4.0, 1, 1, "a", "failed", -9, "killed: it took\ntoo long"),
        "failed with code -9: killed: it took\ntoo long",
    ),
    (events.AttemptEnded(4.0, 1, 1, "a", "finished", 0), "finished with code 0"),
    (events.AttemptEnded(4.0, 1, 1, "a", "lost", None, "the lease ended"), "lost: the lease ended"),
    (
        events.RanShort(4.0, 1, 1, "a", "memory", 4.0, 8.0),
        "4 memory were not enough: from now on it gets at least 8, and so do its owner's other tasks of this type",
    ),
    (events.Requeued(4.0, 1, 1), ""),
    (
        events.Requeued(4.0, 1, 3, None, 20.0, 3),
        "rests for 16 s: it ended early and without success 3 times in a row",
    ),
    (events.AttemptRecovered(4.0, 1, 1, "a"), "it had counted as lost, and its agent says how it ended"),
    (events.Cancelling(4.0, 1), ""),
    (events.AttemptRefused(4.0, 1, 1, "a", "finished"), "old attempt: finished"),
    (events.Warned(4.0, 1, 1, "a", "odd: \N{SNOWMAN}"), "odd: \N{SNOWMAN}"),
    *((cls(5.0, 1, 2, "a"), "") for cls in events.CLOSED.values()),
    (events.AgentJoined(0.0, cluster="a", agent="agent-1"), "agent-1"),
    (events.AgentAway(0.0, cluster="a", reason="its connection was closed"), "its connection was closed"),
    (events.AgentSilent(0.0, cluster="a"), ""),
    (
        events.CapacityCompared(0.0, cluster="a", configured={"cpu": 4.0}, reported={"cpu": 2.0}),
        "4 cpu are configured, and its agent has 2 cpu; of each resource the smaller amount counts",
    ),
    (
        events.CapacityCompared(0.0, cluster="a", configured={"cpu": 4.0}, reported={"cpu": 4.0}),
        "configuration and agent agree again: 4 cpu",
    ),
    (
        events.OlderStore(0.0, cluster="a", sign="its agent is ahead", epoch=7),
        "its agent is ahead: an older copy of the store was put in its place. What was submitted, cancelled or ended "
        "after that copy was made is not known any more; attempts that are not in it are stopped, and tasks whose end "
        "is not in it are run again. It goes on with epoch 7",
    ),
    (events.ClusterDrained(0.0, cluster="a"), ""),
    (events.ClusterOpened(0.0, cluster="a"), ""),
    (events.SchedulerFault(9.0, text="greedy: ValueError: no. "), "greedy: ValueError: no. "),
    (
        events.SpeedDrift(9.0, type="t", factor=1.93, since=224.0),
        "t: tasks take 1.93 times as long as before, since 1970-01-01 00:03:44 UTC",
    ),
    (
        events.SpeedForgotten(9.0, type="t"),
        "t: its configured profile is another one, so what was learnt of it is forgotten",
    ),
    (events.OtherEvent(9.0, 3, None, "a", "sang", "loudly"), "loudly"),
]


@pytest.mark.parametrize(("event", "said"), EVERY, ids=lambda value: getattr(value, "kind", ""))
def test_an_event_survives_json_and_has_words(event: LiveEvent, said: str) -> None:
    line = (event.at, event.kind, event.task, event.attempt, event.cluster)
    assert events.decode_event(*line, events.encode_fields(event)) == event
    assert words.detail(event) == said
    shown = json.loads(json.dumps({"seq": 1, **words.shown(event)}))
    assert events.read_event(shown) == event
    assert shown["detail"] == said


NEW_KINDS = (events.RanShort, events.AttemptRecovered, events.AgentAway, events.CapacityCompared, events.OlderStore)


def newer(event: LiveEvent) -> bool:
    """Whether no version before typed events could have written it: then only its text survives a migration."""
    tells_more = isinstance(event, events.Requeued) and event.until is not None
    return isinstance(event, NEW_KINDS) or tells_more or bool(getattr(event, "short", ""))


def test_every_kind_is_tried_here() -> None:
    assert {event.kind for event, _ in EVERY} == {*events.TYPES, "sang"}


def test_kinds_and_fields_of_a_newer_version_do_no_harm() -> None:
    assert events.make_event(1.0, "started", 1, 1, "a", {"colour": "red"}) == events.AttemptStarted(1.0, 1, 1, "a")
    assert events.make_event(1.0, "painted", 1, 1, "a", {"colour": "red"}).kind == "painted"


def test_words_are_only_made_and_never_taken_apart() -> None:
    """Only the migration of old stores reads sentences."""
    source = Path(tapfinger.__file__).parent
    parsing = re.compile(r"\.detail\.|detail\(.*\)\.(partition|split|startswith|removeprefix)|\[.detail.\]\.")
    found = [path.name for path in source.rglob("*.py") if parsing.search(path.read_text())]
    scripts = [
        path.name for path in source.rglob("*.js") if re.search(r"\.detail\.(split|match|indexOf)", path.read_text())
    ]
    assert found + scripts == []


# --------------------------------------------------------------------- old stores


def old_line(event: LiveEvent) -> tuple[Any, ...]:
    """As a version that stored sentences wrote it."""
    return (event.at, event.kind, event.task, event.attempt, event.cluster, words.detail(event))


def before_typed() -> str:
    """The schema of version 6, by hand: the statements of migrations that are never changed."""
    return ";".join(step for step in migrations.MIGRATIONS[:6] if isinstance(step, str))


SPEC = '{"argv":["x"],"type":"t","minimum":{"cpu":2.0},"maximum":{},"clusters":["a","b"]}'
TASK = (1, SPEC, "me", 1.5, "queued", 0, 0, 0, 0, "", 0)
INSERT_TASK = (
    "INSERT INTO tasks (id, spec, owner, submitted, phase, attempt, failures, losses, cancelled, reason, output) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
INSERT_LINE = "INSERT INTO history (at, kind, task, attempt, cluster, detail) VALUES (?, ?, ?, ?, ?, ?)"


def write_sqlite(path: Path, lines: list[tuple[Any, ...]]) -> Path:
    with closing(sqlite3.connect(path)) as database, database:
        database.executescript("CREATE TABLE migrations (version INTEGER PRIMARY KEY);" + before_typed())
        database.executemany("INSERT INTO migrations VALUES (?)", [(n,) for n in range(1, 7)])
        database.execute(INSERT_TASK, TASK)
        database.executemany(INSERT_LINE, lines)
    return path


Writer = Callable[[list[tuple[Any, ...]]], Path | str]


@pytest.fixture
def write_old(tmp_path: Path) -> Writer:
    """Writes a store of the version before typed events. The tests of PostgreSQL have one of their own."""
    return lambda lines: write_sqlite(tmp_path / "store.db", lines)


def test_an_old_store_is_migrated_when_it_is_opened(write_old: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrations, "CHUNK", 7)
    old = [event for event, _ in EVERY if not newer(event)]
    where = write_old([old_line(event) for event in old])
    for _ in range(2):  # and once only
        with closing(Store(where)) as store:
            found = [line for _, line in store.history(0, 100)]
            assert store.task(1) is not None
    assert [words.detail(event) for event in found] == [words.detail(event) for event in old], "not a word is lost"
    granted = old[1]
    assert isinstance(granted, events.Granted)
    notes = words.detail(granted).split(": ", 1)[1]
    expected = [events.Granted(2.0, 1, 1, "a", granted.allocation, note=notes) if e is granted else e for e in old]
    assert found == expected, "what was submitted is known from the task"


def test_old_sentences_that_nobody_understands_are_kept(write_old: Writer) -> None:
    lines = [
        (1.0, "granted", 9, 1, "a", "much of it"),
        (1.0, "resized", 9, 1, "a", "much of it"),
        (1.0, "ended", 9, 1, "a", "?"),
        (1.0, "profile drift", None, None, None, "t: slow"),
        (1.0, "danced", None, None, "a", "a waltz"),
        (1.0, "submitted", 9, None, None, ""),
    ]
    with closing(Store(write_old(lines))) as store:
        found = [line for _, line in store.history(0, 100)]
    assert [old_line(event) for event in found] == lines


def test_histories_of_the_protocol_survive_the_migration(tmp_path: Path) -> None:
    history = [line for seed in range(5) for line in play(seed).disk.history]
    kinds = {type(line) for line in history}
    assert {events.Granted, events.AttemptEnded, events.AttemptResized, events.AgentJoined} <= kinds
    with closing(Store(write_sqlite(tmp_path / "store.db", [old_line(line) for line in history]))) as store:
        found = [line for _, line in store.history(0, 1_000_000)]
    assert [old_line(line) for line in found] == [old_line(line) for line in history]
    for before, after in zip(history, found, strict=True):
        if isinstance(before, events.Granted):
            assert isinstance(after, events.Granted)
            assert after.allocation == before.allocation
        elif newer(before):
            assert words.detail(after) == words.detail(before)
        elif not isinstance(before, events.Submitted):
            assert after == before
