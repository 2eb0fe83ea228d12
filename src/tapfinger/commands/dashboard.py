"""``tapfinger dashboard``: prints a link to a live site's dashboard."""

from __future__ import annotations

from typing import Annotated

import typer

from tapfinger.commands.options import StateOption, UrlOption


def dashboard_link(url: str, token: str) -> str:
    """An address that signs in. The part after # stays in the browser and is never sent."""
    return f"{url.rstrip('/')}/#token={token}"


def dashboard(
    state: StateOption = None,
    url: UrlOption = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open it in a browser as well.")] = False,
) -> None:
    """Print a link to the dashboard that signs in. Anyone with the link can act as you: keep it secret."""
    import webbrowser

    from tapfinger.live.state_dir import find_coordinator, local_note

    address, token = find_coordinator(state, url)
    note = local_note(state, url)
    if "server_name" in note:  # a browser looks in the certificate for no name but the address's own
        address = note["advertised"]
    link = dashboard_link(address, token)
    typer.echo(link)
    if open_it and not webbrowser.open(link):
        typer.echo("No browser was found; open the link yourself.", err=True)
