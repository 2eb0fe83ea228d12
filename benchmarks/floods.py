"""Floods against a real site: no lease may be missed, no running task touched, and memory must stay small.

``python benchmarks/floods.py --minutes 10`` floods for ten minutes with all kinds of each sender at once, a site
without and then one with TLS; without options, for ten seconds. ``--alone`` floods with one kind after the other,
``--only submitter`` with the kinds of one sender. All of it stays on this machine.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from live.floods import FLOODS, flood, longest_lag, memory
from live.test_floods import LEASE, Flooded

from tapfinger.live.http.tls import trust

#: Seconds between two looks at the coordinator; its longest lag is that of the last minute.
LOOK = 5.0


class Watch:
    """Looks at a coordinator while it is flooded."""

    def __init__(self, site: Flooded) -> None:
        """``site``: the site that is flooded."""
        self.lag = self.memory = 0.0
        self._site = site
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Watch:
        """Begin to look."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Look a last time."""
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        site = self._site.site
        token = (site.state / "token").read_text(encoding="ascii").strip()
        verify = trust(site.ca) if site.ca is not None else True
        with httpx.Client(headers={"Authorization": f"Bearer {token}"}, verify=verify, timeout=60.0) as client:
            ended = False
            while not ended:
                ended = self._ended.wait(LOOK)
                self.memory = max(self.memory, memory(self._site.pid))
                try:
                    answer = client.get(f"{site.url}/metrics")
                except httpx.HTTPError:
                    continue  # people may have to wait while it is flooded; agents may not
                if answer.is_success:
                    self.lag = max(self.lag, longest_lag(answer.text))


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for this machine, signed by itself."""
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    words += ["-subj", "/CN=tapfinger", "-addext", "subjectAltName=IP:127.0.0.1"]
    words += ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(words, check=True, capture_output=True)
    return folder / "cert.pem", folder / "key.pem"


def row(site: Flooded, names: Sequence[str], seconds: float) -> str:
    """Flood the site, and tell in a line of a table what became of it."""
    seq = site.client.events(last=1)[-1]["seq"]
    before = site.client.show(site.task)
    with Watch(site) as watch:
        counts = flood(site.site, names, seconds, site.tokens)
    after = site.client.show(site.task)
    missed = 0
    while page := site.client.events(seq, limit=10_000):  # a submitter's floods have many
        missed += sum(line["kind"] in ("silent", "lost") for line in page)
        seq = page[-1]["seq"]
    touched = int((after.phase, after.attempt) != (before.phase, before.attempt))
    told = ", ".join(f"{name.partition(': ')[2]} {count:,}" for name, count in counts.items())
    return f"| {names[0].partition(':')[0]} | {told} | {watch.lag:.2f} | {watch.memory:.0f} | {missed} | {touched} |"


def kinds(alone: bool, only: str = "") -> list[list[str]]:
    """Kinds that flood at once: those of one sender, or each by itself. ``only``: of this sender; empty: of all."""
    chosen = [name for name in FLOODS if name.startswith(only)]
    if alone:
        return [[name] for name in chosen]
    return [list(names) for _, names in groupby(chosen, lambda name: name.partition(":")[0])]


def report(
    minutes: float = 1.0, alone: bool = False, sites: Sequence[bool] = (False, True), only: str = ""
) -> list[str]:
    """The section of BENCHMARKS.md. ``sites``: for each, whether it has TLS. ``only``: floods of this sender."""
    lines = [
        "## Floods",
        "",
        f"`python benchmarks/floods.py --minutes {minutes:g}{' --alone' if alone else ''}"
        f"{f' --only {only}' if only else ''}{'' if len(sites) > 1 else ' --without-tls'}`. A real site with a lease "
        f"of {LEASE:g} s and 3,000 waiting tasks, flooded for {minutes:g} minutes with "
        f"{'each kind' if alone else 'all kinds of each sender at once'}, by clients on the same machine. To reach: no "
        "lease missed, no task touched, memory below 400 MB. The lag is how late the loop that serves agents was at "
        "worst.",
    ]
    for encrypted in sites:
        lines += ["", f"{'TLS' if encrypted else 'Plain HTTP'}:", ""]
        lines.append("| sender | attempts | longest loop lag, s | memory, MB | leases missed | tasks touched |")
        lines.append("|---|---|--:|--:|--:|--:|")
        with tempfile.TemporaryDirectory(prefix="tapfinger-floods-") as folder:
            site = Flooded(Path(folder), certificate(Path(folder)) if encrypted else None)
            try:
                for names in kinds(alone, only):
                    lines.append(row(site, names, 60.0 * minutes))
                    print(lines[-1], file=sys.stderr, flush=True)
            finally:
                site.close()
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1 / 6, help="of each flood")
    parser.add_argument("--alone", action="store_true", help="one kind after the other")
    parser.add_argument("--without-tls", action="store_true", help="only the site without TLS: half of the time")
    parser.add_argument("--only", default="", help="floods of one sender: nobody, viewer or submitter")
    asked = parser.parse_args()
    sites = (False,) if asked.without_tls else (False, True)
    print("\n".join(report(asked.minutes, asked.alone, sites, asked.only)))
