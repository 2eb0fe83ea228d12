"""Tasks that close their own directories (``chmod 0``) keep nobody from anything."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from live.plain_user import as_plain_user
from live.test_results import run_in

from tapfinger.live.agent.link import CoordinatorLink
from tapfinger.live.protocol.wire import FileAnswer, FileRequest, decode

# ----------------------------------------------------------------------- asking for files

FINDS = """
import sys
from pathlib import Path
from tapfinger.live.agent.disk import DiskRules
from tapfinger.live.agent.results import Results
print(Results(Path(sys.argv[1]), DiskRules()).find((1, 1)))
"""


def test_files_in_a_closed_directory_are_not_there(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    assert as_plain_user(FINDS, tmp_path).strip() == str(run.work)
    run.visible.chmod(0)
    assert as_plain_user(FINDS, tmp_path).strip() == "None"


class Failing:
    """A host in place of an agent's, whose files cannot be read for a reason that nobody foresaw."""

    def files(self, request: FileRequest) -> FileAnswer:
        raise PermissionError(13, "Permission denied", f"/secret/{request.id[0]}")


class Socket:
    """Notes what is sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    async def send(self, text: str) -> None:
        self.sent.append(decode(text))


def test_a_request_that_fails_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    socket = Socket()
    link = CoordinatorLink(Failing(), ("http://127.0.0.1:1",), "token")  # type: ignore[arg-type]
    asyncio.run(link._answer(socket, FileRequest(7, (1, 1)), busy=False))  # type: ignore[arg-type]
    assert socket.sent == [FileAnswer(7, fault="the agent cannot read files now: PermissionError; try again")]
    assert "a request for files of task 1 attempt 1 has failed" in caplog.text
