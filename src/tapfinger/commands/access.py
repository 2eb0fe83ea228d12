"""``tapfinger token`` and ``audit``: who may do what on a live site, and who did what."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tapfinger.commands.options import StateOption, UrlOption, open_client
from tapfinger.commands.screen import say


class _NewByDefault(TyperGroup):
    """``token NAME --role ROLE`` is short for ``token new NAME --role ROLE``."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # typer has click's types, or its own
        """Insert ``new`` if the first argument is not a command."""
        if args and args[0] not in self.commands:
            args = ["new", *args]
        return super().resolve_command(ctx, args)


tokens = typer.Typer(cls=_NewByDefault, no_args_is_help=True, help="Make, list and revoke tokens.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Whom it is for; an older one of that name is void.")]


@tokens.command("new")
def new(
    name: NameArgument,
    role: Annotated[str, typer.Option(metavar="ROLE", help="metrics, viewer, submitter, operator or agent.")],
    state: StateOption = None,
    url: UrlOption = None,
    cluster: Annotated[str | None, typer.Option(metavar="NAME", help="Cluster that an agent speaks for.")] = None,
    days: Annotated[
        float | None, typer.Option(min=0.0001, max=100_000, help="How long it works. Without it: until it is revoked.")
    ] = None,
    inherit: Annotated[
        bool, typer.Option("--inherit", help="Of a revoked name: give it the tasks that are left of it.")
    ] = False,
) -> None:
    """Make a token for someone and print it; it is shown only once."""
    with open_client(state, url) as client:
        typer.echo(client.new_token(name, role, cluster, None if days is None else days * 86400.0, inherit))


@tokens.command("list")
def list_tokens(state: StateOption = None, url: UrlOption = None) -> None:
    """List the tokens by name, with role and expiry."""
    from datetime import datetime

    with open_client(state, url) as client:
        for token in client.tokens():
            until = "no end"
            if token["expires"] is not None:
                ends = datetime.fromtimestamp(token["expires"]).strftime("%Y-%m-%d %H:%M")
                until = f"expired {ends}" if token["expired"] else f"until {ends}"
            of = f" of {token['cluster']}" if token["cluster"] else ""
            say(f"{token['name']}: {token['role']}{of}, {until}")


@tokens.command("revoke")
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose token.")],
    state: StateOption = None,
    url: UrlOption = None,
) -> None:
    """Revoke a token, with immediate effect."""
    with open_client(state, url) as client:
        client.revoke(name)


def audit(
    state: StateOption = None,
    url: UrlOption = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many lines.")] = 50,
) -> None:
    """Show who did what, when, and from where."""
    from datetime import datetime

    with open_client(state, url) as client:
        for line in client.audit(limit):
            at = datetime.fromtimestamp(line["at"]).strftime("%Y-%m-%d %H:%M:%S")
            detail = f": {line['detail']}" if line["detail"] else ""
            say(f"{at}  {line['who'] or '(nobody)'} from {line['from']}: {line['what']} -> {line['status']}{detail}")
