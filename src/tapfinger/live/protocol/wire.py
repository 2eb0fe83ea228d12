"""Messages between coordinator and agent as text: a JSON object with one key, the kind. Nothing is ever unpickled."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, TypeAdapter, ValidationError

from tapfinger.errors import CoordinatorError
from tapfinger.live.protocol.messages import MOST_RESOURCES, AttemptId, Number, Orders, Report, Said

#: Bytes of output that an agent sends in one message.
CHUNK = 256 * 1024
#: Most bytes of output that a coordinator accepts in one message.
MAX_PIECE = 2 * CHUNK

#: Largest size of a file in a message, in bytes, and latest time of a change, in seconds since the epoch.
LARGEST, LATEST = 2**53, 1e12

#: Longest message from an agent, in bytes: a report of ten thousand runs, each with a reason.
MAX_REPORT = 8 * 1024 * 1024

#: Longest message to an agent, in bytes: orders to start a hundred tasks with the longest possible arguments.
MAX_MESSAGE = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A piece of a task's output, from ``offset`` on; an empty piece asks how much has arrived."""

    id: AttemptId
    offset: Number
    #: Bytes, each as the character with that code.
    data: Annotated[str, Field(max_length=MAX_PIECE, pattern=r"^[\x00-\xff]*$")] = ""
    #: Bytes left out just before this piece: the task has written more than is kept.
    skipped: Number = 0


@dataclass(frozen=True, slots=True)
class LogSize:
    """How many bytes of a task's output the coordinator has; ``full``: it wants no more of it."""

    id: AttemptId
    size: int
    full: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the coordinator refuses an agent."""

    reason: str
    #: Whether the coordinator is a standby; the address of the leader, if known.
    standby: bool = False
    leader: str = ""


@dataclass(frozen=True, slots=True)
class FileRequest:
    """Coordinator to agent: a part of a file that an attempt has left, or of the list of a directory."""

    #: Number of the request, which the answer repeats.
    number: int
    id: AttemptId
    #: Path below the attempt's directory; empty: the directory itself.
    path: str = ""
    #: Whether to list the directory, from the name after ``after`` on, instead of reading a file from ``offset`` on.
    listed: bool = False
    after: str = ""
    offset: int = 0


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One entry of a directory."""

    name: Annotated[str, Field(max_length=1024)]
    #: Links and special files are listed, never opened.
    kind: Literal["file", "directory", "link", "special"]
    #: Bytes.
    size: Number
    #: When it was changed last, in seconds since the epoch.
    modified: Annotated[float, Field(ge=-LATEST, le=LATEST)]


@dataclass(frozen=True, slots=True)
class FileAnswer:
    """Agent to coordinator: what was asked for, or why it cannot be had."""

    number: Number
    #: Why there is nothing; empty if there is something.
    fault: Said = ""
    entries: Annotated[tuple[FileEntry, ...], Field(max_length=2000, fail_fast=True)] = ()
    #: Whether the directory has more entries.
    more: bool = False
    #: Bytes, each as the character with that code.
    data: Annotated[str, Field(max_length=MAX_PIECE, pattern=r"^[\x00-\xff]*$")] = ""
    #: Bytes of the whole file.
    size: Number = 0
    #: When the file was changed last, in seconds since the epoch.
    modified: Annotated[float, Field(ge=-LATEST, le=LATEST)] = 0.0


@dataclass(frozen=True, slots=True)
class ProposalRequest:
    """Coordinator to agent: what all agents see in this turn (``core.exchange``), to propose for its own cluster."""

    #: Number of the turn, which the answer repeats; of several requests, only the one with the highest counts.
    number: int
    #: Row of the agent's cluster.
    row: int
    #: The network to run: shipped name or path, and the SHA-256 of its graph.
    model: str
    digest: str
    #: The observation as Base64.
    data: str


@dataclass(frozen=True, slots=True)
class ProposalAnswer:
    """Agent to coordinator: what it wants in this turn, or why it can want nothing."""

    number: Number
    #: Place in the cluster's pending set; None: void.
    place: Number | None = None
    amounts: Annotated[tuple[Number, ...], Field(max_length=MOST_RESOURCES, fail_fast=True)] = ()
    #: The agent's probability of choosing this task.
    score: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    #: Why it cannot compute a proposal; empty if it could.
    fault: Said = ""


Message = Report | Orders | LogChunk | LogSize | Refusal | FileRequest | FileAnswer | ProposalRequest | ProposalAnswer
_ADAPTERS: dict[str, TypeAdapter[Any]] = {kind.__name__: TypeAdapter(kind) for kind in get_args(Message)}
_envelope: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


def encode(message: Message) -> str:
    """A message as text. Characters that are none, such as those of a path that is not UTF-8, become question marks."""
    name = type(message).__name__
    try:
        body = _ADAPTERS[name].dump_json(message).decode()
    except ValueError:  # one such text must not keep an agent from reporting all the rest
        plain = _ADAPTERS[name].dump_python(message)
        body = json.dumps(plain, ensure_ascii=False).encode(errors="replace").decode()
    return f'{{"{name}":{body}}}'


def decode(text: str | bytes) -> Message:
    """Text as a message; raises CoordinatorError for any other text."""
    try:
        ((name, body),) = _envelope.validate_json(text).items()
        message: Message = _ADAPTERS[name].validate_python(body)
    except ValidationError as error:  # only their number: texts of half a million faults would take seconds
        said = f"{error.error_count()} faults in {error.title}"
        raise CoordinatorError(f"not a message TapFinger knows: {said[:200]}") from None
    except (ValueError, KeyError) as error:
        raise CoordinatorError(f"not a message TapFinger knows: {str(error)[:200]}") from None
    return message
