"""The tests of the store once more on a real PostgreSQL, and what two coordinators do on one database."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from engines.postgres import PostgresServer
from live.test_events import (  # noqa: F401
    INSERT_LINE,
    INSERT_TASK,
    TASK,
    Writer,
    before_typed,
    test_an_old_store_is_migrated_when_it_is_opened,
    test_old_sentences_that_nobody_understands_are_kept,
)
from live.test_retention import (  # noqa: F401
    test_a_key_of_a_task_that_is_gone_makes_a_new_task,
    test_by_age_and_by_number_the_first_to_end_go_first,
    test_events_of_the_site_go_by_age_and_number,
    test_numbers_are_never_given_out_again_and_counts_stay,
    test_only_ended_tasks_can_be_removed,
    test_output_in_the_store_is_counted_and_the_oldest_goes,
    test_the_overview_stays_right,
    test_what_ended_tasks_brought_with_them_is_bounded,
)
from live.test_store import (  # noqa: F401
    DONE,
    RECORD,
    RUNNING,
    opened,
    test_a_batch_is_saved_as_a_whole_or_not_at_all,
    test_a_store_of_a_newer_version_is_refused_and_an_older_one_brought_up_to_date,
    test_epochs_rise,
    test_long_lists_are_read_a_few_at_a_time,
    test_of_a_long_output_the_middle_is_left_out,
    test_output_comes_in_pieces_in_whatever_order_and_however_often,
    test_secrets_are_for_one_owner_or_one_task_and_end_with_them,
    test_tasks_are_listed_from_the_newest_on_in_pages,
    test_tokens_are_replaced_by_name_and_removed,
    test_what_is_saved_is_there_after_reopening,
    test_what_was_acknowledged_survives_a_kill,
)
from waiting import wait_for

from tapfinger.errors import ConfigError, MissingDependency, NotLeading, StoreFailed, StoreUnavailable
from tapfinger.live.store import leadership
from tapfinger.live.store import postgres as postgres_module
from tapfinger.live.store.store import Store, Token


@pytest.fixture
def where(postgres: PostgresServer) -> str:
    """Address of a new database."""
    return postgres.database()


@pytest.fixture
def integrity_error() -> type[Exception]:
    """What the database raises for a key that exists already."""
    return psycopg.IntegrityError


@pytest.fixture
def write_old(postgres: PostgresServer) -> Writer:
    """Writes a store of the version before typed events."""

    def write(lines: list[tuple[Any, ...]]) -> str:
        address, schema = postgres.database(), before_typed()
        for word, other in postgres_module._TYPES.items():
            schema = schema.replace(word, other)
        with psycopg.connect(address) as database:
            database.execute("CREATE TABLE migrations (version BIGINT PRIMARY KEY)")
            for statement in filter(str.strip, schema.split(";")):
                database.execute(statement.encode())
            for n in range(1, 7):
                database.execute("INSERT INTO migrations VALUES (%s)", (n,))
            database.execute(INSERT_TASK.replace("?", "%s").encode(), TASK)
            database.cursor().executemany(INSERT_LINE.replace("?", "%s").encode(), lines)
        return address

    return write


@pytest.fixture
def pair(postgres: PostgresServer) -> Iterator[tuple[Store, Store]]:
    """Two coordinators' views of one database."""
    address = postgres.database()
    stores = Store(address), Store(address)
    yield stores
    for store in stores:
        store.close()


def test_one_leads_and_the_other_can_only_read(pair: tuple[Store, Store]) -> None:
    first, second = pair
    assert first.leader() is None
    assert (first.lead("http://first"), second.lead("http://second")) == (1, None)
    first.save([RECORD], [])
    assert second.task(7) == RECORD
    for change in (
        lambda: second.save([RUNNING], []),
        lambda: second.set_meta("drained", []),
        lambda: second.add_token(Token("h", "ann", "viewer", None, 1.0)),
        second.renew,
    ):
        with pytest.raises(NotLeading, match="the leader is at http://first"):
            change()
    assert second.task(7) == RECORD
    assert second.leads_until < time.clock_gettime(time.CLOCK_BOOTTIME) < first.leads_until
    first.close()  # as when its process dies: nobody waits for the end of its term
    wait_for(lambda: (leader := second.leader()) is not None and leader.gone)
    assert second.lead("http://second") == 2


def test_who_is_deposed_learns_who_leads_without_another_connection(pair: tuple[Store, Store]) -> None:
    first, second = pair
    first.lead("http://first")

    def connections() -> int:
        query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tapfinger' AND datname = "
        return int(first._db.query(f"{query} current_database()")[0][0])

    with pytest.raises(NotLeading):
        second.renew()
    before = connections()
    for _ in range(3):
        with ThreadPoolExecutor(1) as thread, pytest.raises(NotLeading, match="http://first"):
            thread.submit(second.renew).result()
    assert connections() == before


def test_only_the_leader_prunes(pair: tuple[Store, Store]) -> None:
    first, second = pair
    first.lead("http://first")
    first.save([replace(DONE, id=1)], [])
    with pytest.raises(NotLeading):
        second.remove_tasks([1])
    assert second.kept == 1
    first.remove_tasks([1])
    assert (second.kept, second.task(1), second.next_id()) == (0, None, 2)


def test_an_epoch_is_above_what_a_coordinator_has_noted(pair: tuple[Store, Store]) -> None:
    first, _ = pair
    assert first.lead("http://first", 7) == 8


def test_a_table_that_is_gone_is_said(postgres: PostgresServer) -> None:
    address = postgres.database()
    Store(address).close()
    with psycopg.connect(address) as connection:
        connection.execute("DROP TABLE totals")
    store = Store(address)
    with pytest.raises(StoreFailed, match=r"cannot be used: .*totals"):
        store.counts()
    store.close()


def test_a_leader_goes_on_above_the_epoch_that_agents_know(pair: tuple[Store, Store]) -> None:
    """As when an older dump was loaded: it leads on, in an epoch that nobody has had."""
    first, second = pair
    first.lead("http://first")
    first.save([RECORD], [], {"epoch": 41})
    first.save([RUNNING], [])
    first.renew()
    assert second.lead("http://second") is None
    leader = second.leader()
    assert leader is not None
    assert (leader.epoch, leader.gone) == (41, False)
    first.close()
    wait_for(lambda: (leader := second.leader()) is not None and leader.gone)
    assert second.lead("http://second") == 42


def test_a_leader_that_is_late_finds_itself_deposed(pair: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = pair
    monkeypatch.setattr(leadership, "TERM", 4.0)
    first.lead("http://first")
    time.sleep(2.1)
    first.renew()
    time.sleep(2.1)
    assert second.lead("http://second") is None, "it was renewed"
    # It knows by itself when it is late.
    wait_for(lambda: first.leads_until < time.clock_gettime(time.CLOCK_BOOTTIME))
    monkeypatch.setattr(leadership, "TERM", 120.0)
    assert wait_for(lambda: second.lead("http://second")) == 2
    with pytest.raises(NotLeading, match="http://second"):
        first.save([RECORD], [])
    assert (first.task(7), first.leads_until) == (None, 0.0)
    second.save([RECORD], [])
    assert first.task(7) == RECORD


def test_a_leader_that_sleeps_in_a_transaction_keeps_nobody_from_leading(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leadership, "TERM", 0.3)
    monkeypatch.setattr(postgres_module, "IDLE", 0.3)
    address = postgres.database()
    first, second = Store(address), Store(address)
    first.lead("http://first")

    def be_stopped_in_it() -> None:
        with first._transaction() as work:
            work.execute("INSERT INTO meta VALUES ('half', '1')")
            time.sleep(0.5)
            assert second.lead("http://second") == 2
            work.execute("INSERT INTO meta VALUES ('rest', '1')")

    with pytest.raises(StoreUnavailable):
        be_stopped_in_it()
    assert (second.meta("half"), second.meta("rest")) == (None, None)
    with pytest.raises(NotLeading):
        first.renew()
    first.close()
    second.close()


def test_addresses_that_cannot_be_used_are_refused_without_showing_a_password(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for address in ("mysql://me:secret@x/y", "postgresql://me:secret@[x", "postgresql://me:secret@127.0.0.1:1/y"):
        with pytest.raises(ConfigError) as refused:
            Store(address)
        assert "secret" not in str(refused.value)
        assert "\n" not in str(refused.value)
    postgres.run("postgres", "CREATE DATABASE old ENCODING 'SQL_ASCII' TEMPLATE template0")
    with pytest.raises(ConfigError, match="not in UTF8; create the database with"):
        Store(postgres.url("old"))
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingDependency, match=r"pip install 'tapfinger\[postgres\]'"):
        Store(postgres.url("postgres"))
