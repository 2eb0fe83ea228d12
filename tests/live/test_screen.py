"""What others have written cannot control the terminal of whoever looks at it."""

from __future__ import annotations

import io
import logging
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from live.sites import RealSite, python
from waiting import PATIENCE

from tapfinger.commands.screen import OutputWriter, plain_console
from tapfinger.live.logging_setup import TextLines
from tapfinger.visible import visible

#: Writes to the clipboard, asks the terminal for its name, clears the screen, turns the text round.
NASTY = "\x1b]52;c;cm0gLXJm\x07 \x1b[c \x1b[2J \x9b6n \u202e.exe \x7f"


def test_controls_become_visible() -> None:
    assert visible("a\x1b[31mb\n\tc\x9bd\u202ee\u2066f\x00") == r"a\x1b[31mb\n\tc\x9bd\u202ee\u2066f\x00"
    assert visible("a\n\tb\x1b", lines=True) == "a\n\tb\\x1b"
    assert visible("grüße, 你好 🙂 العربية \\") == "grüße, 你好 🙂 العربية \\"
    assert visible("\ud800").encode() == b"\\ud800"


def test_a_console_shows_what_others_wrote_in_tables_too() -> None:
    from rich.table import Table

    console = plain_console(width=200)
    console.file = io.StringIO()
    table = Table(title=NASTY)
    table.add_column(NASTY)
    table.add_row(NASTY)
    console.print(table)
    console.print(NASTY)
    printed = console.file.getvalue()
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", printed)
    assert printed.count(r"\x1b]52;c;") == 4


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 1000])
def test_output_keeps_colours_and_nothing_else(cut: int) -> None:
    writer = OutputWriter()
    raw = f"\x1b[1;31mred\x1b[0m\x1b[K 50 %\r60 %\n{NASTY}\x1bP1$r\x1b\\ grüße\x1b[".encode() + b"\xff\xc3"
    pieces = [raw[n : n + cut] for n in range(0, len(raw), cut)]
    text = "".join(map(writer.harmless, pieces)) + writer.harmless(b"", last=True)
    assert text == (
        "\x1b[1;31mred\x1b[0m\x1b[K 50 %\r60 %\n"
        "\\x1b]52;c;cm0gLXJm\\x07 \\x1b[c \\x1b[2J \\x9b6n \u202e.exe \\x7f\\x1bP1$r\\x1b\\ grüße\\x1b[\ufffd\ufffd"
    )


def test_a_long_sequence_without_an_end_takes_no_long_time() -> None:
    writer = OutputWriter()
    before = os.times().user
    for _ in range(200):
        writer.harmless(b"\x1b[" + b"1;" * 5_000)
    assert os.times().user - before < 5.0


def test_a_line_of_the_log_stays_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        logging.getLogger("x").info("ended: %s", f"{NASTY}\ntime=0 level=INFO forged")
    line = TextLines("%(message)s").format(caplog.records[0])
    assert "\n" not in line
    assert "\x1b" not in line


def in_a_terminal(state: Path, *words: str) -> bytes:
    """What a command writes to a terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "tapfinger", *words]
    environment = {**os.environ, "TAPFINGER_STATE": str(state), "COLUMNS": "200"}
    with subprocess.Popen(command, env=environment, stdin=theirs, stdout=theirs, stderr=theirs):
        os.close(theirs)
        found = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the terminal's other end is closed
                break
            if not piece:
                break
            found += piece
    os.close(ours)
    return found


#: Sequences that commands may write: colours, and what a table is styled with.
HARMLESS = re.compile(rb"\x1b\[[0-9;]*[mK]")


@pytest.mark.slow
def test_commands_in_a_terminal(tmp_path: Path) -> None:
    site = RealSite(tmp_path)
    try:
        client = site.up()
        says = f"import sys; sys.stdout.buffer.write({NASTY!r}.encode() + b'\\x1b[32mgreen\\n'); sys.exit(3)"
        (task,) = client.submit(python(says, name=f"named {NASTY}".replace("\x1b", "\x9b").replace("\x07", "\x80")))
        (odd,) = client.submit(python("raise SystemExit(1)", cwd=f"/{NASTY}"))
        client.wait(task, PATIENCE)
        client.wait(odd, PATIENCE)
        raw = b"".join(client.logs(task, follow=True))
        assert NASTY.encode() in raw, "a program that reads it gets it as it is"
        with pytest.raises(Exception, match="no task 99"):
            client.show(99)
        shown = {
            words: in_a_terminal(site.state, *words)
            for words in (
                ("list",),
                ("show", str(odd)),
                ("show", str(task)),
                ("events",),
                ("explain", str(odd)),
                ("audit",),
                ("clusters",),
                ("run", "--type", "odd\x1b]52;c;eA==\x07", "--", "x"),
                ("run", "--cwd", "", "--", sys.executable, "-c", says),
                ("logs", str(task)),
            )
        }
        for words, found in shown.items():
            left = HARMLESS.sub(b"", found)
            assert b"\x1b" not in left, (words, left)
            assert b"\x07" not in left, (words, left)
            assert b"\xc2\x9b" not in left, (words, left)
        assert b"\x1b[32mgreen" in shown["logs", str(task)]
        assert shown["logs", str(task)].endswith(b"\x1b[0m")
        assert b"\\x1b]52;c;" in shown["logs", str(task)]
        command = [sys.executable, "-m", "tapfinger", "logs", str(task)]
        environment = {**os.environ, "TAPFINGER_STATE": str(site.state)}
        assert subprocess.run(command, env=environment, capture_output=True, check=True).stdout == raw
    finally:
        site.close()
