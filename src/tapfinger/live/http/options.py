"""Settings of ``tapfinger serve``. Imports no web server, so that ``--help`` is fast."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tapfinger.settings import FieldHelp


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Where a coordinator can be reached, and what it logs."""

    host: Annotated[str, FieldHelp("Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, FieldHelp("Port to listen on; 0 for any that is free.", min=0, max=65535)] = 7410
    allow_remote: Annotated[
        bool, FieldHelp("Listen beyond this machine, although nothing is encrypted.", option="--allow-remote")
    ] = False
    store: Annotated[
        str | None,
        FieldHelp("PostgreSQL database, which several coordinators may share. Without it: a file.", "URL"),
    ] = None
    advertise: Annotated[
        str | None, FieldHelp("Address at which others reach this coordinator, if it is another.", "URL")
    ] = None
    trust_proxy: Annotated[
        str | None, FieldHelp("A proxy whose X-Forwarded-For is believed. Without it: nobody's is.", "ADDRESS")
    ] = None
    tls_cert: Annotated[Path | None, FieldHelp("Certificate to show, with those that it was signed with.", "FILE")] = (
        None
    )
    tls_key: Annotated[Path | None, FieldHelp("Key of the certificate.", "FILE")] = None
    verbose: Annotated[bool, FieldHelp("Log everything that happens.", option="--verbose")] = False
    log_format: Annotated[str, FieldHelp("Of the log: text, or json (an object per line).", "FORMAT")] = "text"
