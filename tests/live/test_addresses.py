"""Addresses and certificates of a coordinator: what it notes works here, and the documented set-up works as written."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from live.sites import CONFIG
from live.test_docs import DOCS, blocks
from waiting import PATIENCE, wait_for

from tapfinger.live.http.client import Client
from tapfinger.live.http.server import addresses
from tapfinger.live.http.tls import certificate
from tapfinger.live.local_site import LocalSite
from tapfinger.live.state_dir import noted

NEEDS_OPENSSL = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")


@pytest.mark.parametrize(
    ("host", "names", "url", "server_name", "advertised"),
    [
        ("127.0.0.1", None, "http://127.0.0.1:1", None, "http://127.0.0.1:1"),
        ("0.0.0.0", None, "http://127.0.0.1:1", None, "http://127.0.0.1:1"),
        ("::", None, "http://[::1]:1", None, "http://[::1]:1"),
        ("localhost", ["localhost"], "https://localhost:1", None, "https://localhost:1"),
        ("127.0.0.1", ["a.example", "127.0.0.1"], "https://127.0.0.1:1", None, "https://127.0.0.1:1"),
        ("127.0.0.1", ["a.example"], "https://127.0.0.1:1", "a.example", "https://127.0.0.1:1"),
        ("0.0.0.0", ["a.example", "b.example"], "https://127.0.0.1:1", "a.example", "https://a.example:1"),
        ("0.0.0.0", ["127.0.0.1"], "https://127.0.0.1:1", None, "https://127.0.0.1:1"),
        ("0.0.0.0", ["*.example", "10.0.0.5"], "https://127.0.0.1:1", "10.0.0.5", "https://10.0.0.5:1"),
        ("0.0.0.0", ["*.example"], "https://127.0.0.1:1", "tapfinger.example", "https://127.0.0.1:1"),
        ("::", ["2001:db8:0::5"], "https://[::1]:1", "2001:db8:0::5", "https://[2001:db8:0::5]:1"),
        ("0.0.0.0", [], "https://127.0.0.1:1", None, "https://127.0.0.1:1"),
    ],
)
def test_addresses_that_are_noted(
    host: str, names: list[str] | None, url: str, server_name: str | None, advertised: str
) -> None:
    found = addresses(host, 1, names, None)
    assert (found["url"], found.get("server_name"), found["advertised"]) == (url, server_name, advertised)
    assert addresses(host, 1, names, "https://proxy.example")["advertised"] == "https://proxy.example"


def make_certificate(folder: Path, *more: str) -> tuple[Path, Path]:
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", *more]
    files = (folder / "cert.pem", folder / "key.pem")
    subprocess.run([*words, "-keyout", str(files[1]), "-out", str(files[0])], check=True, capture_output=True)
    return files


@NEEDS_OPENSSL
@pytest.mark.parametrize(
    ("more", "names"),
    [
        (["-subj", "/CN=x", "-addext", "subjectAltName=DNS:a.example,IP:10.0.0.5"], ("a.example", "10.0.0.5")),
        (["-subj", "/CN=only.example"], ("only.example",)),
        (["-subj", "/CN=x", "-addext", "extendedKeyUsage=clientAuth"], ()),
    ],
)
def test_names_are_read_from_a_certificate(tmp_path: Path, more: list[str], names: tuple[str, ...]) -> None:
    found = certificate(*make_certificate(tmp_path, *more))
    assert found is not None
    assert found.names() == names


def documented() -> list[str]:
    """The commands of the page's section on encryption, for a name that this machine has, and any free port."""
    (block,) = [text for text in blocks(DOCS / "live-security.md", "") if "openssl" in text]
    lines = block.replace("\\\n", " ").splitlines()
    return [line.replace("sched.example.org", "localhost") for line in lines]


@NEEDS_OPENSSL
@pytest.mark.slow
def test_the_documented_encryption_works_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, serve, token, agent, by_state, by_url = documented()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TAPFINGER_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("TAPFINGER_TLS_CA", raising=False)
    (tmp_path / "site.toml").write_text(CONFIG)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "tapfinger").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m tapfinger "$@"\n')
    (tools / "tapfinger").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    running: list[subprocess.Popen[bytes]] = []

    def shell(line: str) -> str:
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, (line, done.stderr)
        return done.stdout

    try:
        shell(make)
        files = " --config site.toml --state"
        running.append(subprocess.Popen(["sh", "-c", f"exec {serve.replace(' ...', f'{files} state --port 0')}"]))
        note = wait_for(lambda: noted(tmp_path / "state" / "coordinator.json"))
        port = note["url"].rpartition(":")[2]
        assert (note["url"], note["server_name"]) == (f"https://127.0.0.1:{port}", "localhost")
        assert note["advertised"] == f"https://localhost:{port}"
        wait_for((tmp_path / "state" / "token").exists)
        shell(token.replace("lab", "left"))
        line = agent.replace("7410", port).replace("lab", "left").replace(" ...", f"{files} agents/left")
        running.append(subprocess.Popen(["sh", "-c", f"exec {line}"]))
        wait_for(lambda: "connected" in shell("tapfinger clusters"))
        assert shell("tapfinger run -- echo encrypted") == "encrypted\n"
        assert "1 finished" in shell(by_state)
        secret = (tmp_path / "state" / "token").read_text().strip()
        assert "1 finished" in shell(f"TAPFINGER_TOKEN={secret} {by_url.replace('7410', port)}")
        assert shell("tapfinger dashboard") == f"https://localhost:{port}/#token={secret}\n"
        # Whoever asks for an address that is not in the certificate is not let through by mistake.
        refused = subprocess.run(
            ["tapfinger", "list", "--url", f"https://127.0.0.1:{port}"],
            env={**os.environ, "TAPFINGER_TLS_CA": "cert.pem"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert re.search("certificate is not valid for '127.0.0.1'", refused.stderr), refused.stderr
        with Client(note["url"], secret, ca="cert.pem", server_name="localhost") as client:
            assert client.counts()["finished"] == 1
    finally:
        LocalSite(tmp_path / "state").down()
        for process in running:
            process.terminate()
            process.wait()
