"""Output on disk: the first bytes and the last ones, in any pieces, never more than allowed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from live.sites import opened
from live.test_backends import end_of

from tapfinger.live.agent.leases import boot_clock, write_lease
from tapfinger.live.backends.base import Run
from tapfinger.live.backends.process import Process
from tapfinger.live.backends.spool import SEGMENTS, Spool, read_part
from tapfinger.live.protocol.messages import Launch


def read_all(spool: Spool, piece: int) -> tuple[dict[int, int], int]:
    """Every byte that is there, by position, and how many were left out."""
    found: dict[int, int] = {}
    position = left_out = 0
    while True:
        at, data = spool.read(position, piece)
        if not data:
            return found, left_out
        left_out += at - position
        found |= {at + i: byte for i, byte in enumerate(data)}
        position = at + len(data)


@given(st.lists(st.integers(0, 30), max_size=30), st.integers(1, 40), st.integers(1, 50))
def test_the_first_and_the_last_bytes_are_kept(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], most: int, piece: int
) -> None:
    spool = Spool(tmp_path_factory.mktemp("spool") / "output", most)
    stream = bytes(i % 251 for i in range(sum(sizes)))
    position = 0
    for size in sizes:
        assert spool.append(stream[position : position + size]) == position + size
        position += size
        assert spool.kept <= most + most // 4 + 1
    found, left_out = read_all(spool, piece)
    assert all(stream[at] == byte for at, byte in found.items())
    assert len(found) + left_out == len(stream) == spool.end
    first, last = min(len(stream), (most + 1) // 2), min(len(stream), max(1, most // 4))
    assert set(range(first)) | set(range(len(stream) - last, len(stream))) <= found.keys()


def test_pieces_may_come_twice_and_with_gaps(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "output", 100)
    spool.append(b"abc")
    assert spool.append(b"bcd", 1) == 4
    assert spool.append(b"cd", 2) == 4
    assert spool.append(b"z", 10) == 11
    assert read_all(spool, 3) == ({0: 97, 1: 98, 2: 99, 3: 100, 10: 122}, 6)


def test_gaps_make_few_files(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "output", 1000)
    for n in range(5 * SEGMENTS):
        assert spool.append(b"x", 10 * n + 10) == 10 * n + 11
    assert len(list((tmp_path / "output.tail").iterdir())) == SEGMENTS
    assert sorted(read_all(spool, 3)[0]) == [10 * n + 10 for n in range(4 * SEGMENTS, 5 * SEGMENTS)]


def test_a_task_that_writes_without_end_does_not_fill_the_disk(tmp_path: Path) -> None:
    write_lease(tmp_path / "lease", boot_clock() + 60)
    code = "import sys\nfor i in range(200_000): print('line', i)\nprint('the end')"
    run = Run(Launch((1, 1), (sys.executable, "-c", code), {"cpu": 1}, {}), tmp_path / "1", {}, tmp_path / "lease")
    run.directory.mkdir()
    opened(Process(), max_log=10_000).start(run)
    end = end_of(run)
    written = sum(len(f"line {i}\n") for i in range(200_000)) + len("the end\n")
    spool = Spool(run.output)
    assert (end.result, end.output, spool.end) == ("finished", written, written)
    assert spool.kept <= 12_500
    found, left_out = read_all(spool, 4096)
    text = bytes(found[at] for at in sorted(found)).decode()
    assert text.startswith("line 0\nline 1\n")
    assert text.endswith("line 199999\nthe end\n")
    assert left_out == written - len(text) > 2_000_000


def test_what_is_no_file_of_the_output_is_neither_read_nor_waited_for(tmp_path: Path) -> None:
    spool, private, tail = Spool(tmp_path / "output", 8), tmp_path / "private", tmp_path / "output.tail"
    spool.append(b"0123456789")
    before = read_all(spool, 100)
    private.write_text("private")
    os.mkfifo(tail / f"{98:020d}")
    (tail / f"{99:020d}").symlink_to(private)
    for name in ("100", "words", "+0000000000000000001"):
        (tail / name).write_text("more")
    assert read_all(spool, 100) == before
    assert spool.end == 10
    other = tmp_path / "other"
    other.symlink_to(private)
    assert Spool(other).read(0, 100) == (0, b"")
    with pytest.raises(OSError, match="symbolic links"):
        Spool(other).append(b"more")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="No such device"):
        Spool(tmp_path / "pipe").append(b"more")
    with pytest.raises(OSError, match="no regular file"):
        read_part(tmp_path / "pipe", 0, 100)
