"""The parts of Ray's Jobs REST API that are needed. It uses HTTP, so Ray need not be installed here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from tapfinger.core.model import ResourceTypes
from tapfinger.errors import BackendError, ConfigError, LaunchFailed

#: Ray's names of its built-in resources, by how a resource is enforced; other resources keep their name.
NAMES = {"cores": "CPU", "visible": "GPU", "memory": "memory"}
GIB = 1024**3
#: Longest log of a job that is read, in bytes; what a driver writes takes less than one megabyte.
MAX_LOG = 8 * 1024 * 1024


def in_rays_words(resources: ResourceTypes, amounts: Mapping[str, float]) -> dict[str, float]:
    """Amounts by Ray's names; memory in bytes, as Ray counts it."""
    found: dict[str, float] = {}
    for name, role in zip(resources.names, resources.roles, strict=True):
        amount = amounts.get(name, 0)
        found[NAMES.get(role.enforced, name)] = amount * GIB if role.enforced == "memory" else amount
    return found


class RayUnreachable(BackendError):  # noqa: N818 - named for what it is
    """Ray does not answer, or not as expected; jobs there may still be running."""


#: Dashboard of a Ray cluster whose head is this machine.
LOCAL_ADDRESS = "http://127.0.0.1:8265"


class RayJobs:
    """Submits jobs to one Ray cluster and queries them. Can be used from many threads."""

    def __init__(self, address: str, token: str | None = None, timeout: float = 30.0) -> None:
        """``address``: Ray's dashboard, such as http://127.0.0.1:8265. ``token``: if the cluster requires one."""
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"Ray's address {address!r} must look like http://HOST:8265")
        self.host = parts.hostname
        self._address = address
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        local = parts.hostname == "localhost" or parts.hostname.startswith("127.")
        self._http = httpx.Client(base_url=address, headers=headers, timeout=timeout, trust_env=not local)

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def _call(self, method: str, path: str, **more: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, path, **more)
        except httpx.HTTPError as error:
            raise RayUnreachable(f"no answer from Ray at {self._address}: {error}") from None
        return self._admitted(answer)

    def _admitted(self, answer: httpx.Response) -> httpx.Response:
        """The answer, unless Ray wants a token first."""
        if answer.status_code in (401, 403):
            raise RayUnreachable(
                f"Ray at {self._address} wants a token ({answer.text[:100]}); set RAY_AUTH_TOKEN for the agent"
            )
        return answer

    def _json(self, answer: httpx.Response) -> Any:
        try:
            answer.raise_for_status()
            return answer.json()
        except (httpx.HTTPError, ValueError):
            raise RayUnreachable(
                f"Ray at {self._address} answers {answer.status_code}: {answer.text.strip()[-200:]}"
            ) from None

    def totals(self) -> dict[str, float]:
        """Total resources of all nodes, by Ray's names."""
        found: dict[str, float] = {}
        data = self._json(self._call("GET", "/api/v0/nodes", params={"detail": 1}))
        for node in data["data"]["result"]["result"]:
            if node["state"] == "ALIVE":
                for name, amount in node["resources_total"].items():
                    found[name] = found.get(name, 0.0) + amount
        return found

    def submit(self, ident: str, entrypoint: str, amounts: Mapping[str, float]) -> None:
        """Submit a job; repeating it does no harm. Raises LaunchFailed if Ray will never accept the job.

        ``amounts``: resources, by Ray's names.
        """
        own = {name: amount for name, amount in amounts.items() if name not in NAMES.values() and amount}
        body = {
            "submission_id": ident,
            "entrypoint": entrypoint,
            "entrypoint_num_cpus": amounts.get("CPU", 0),
            "entrypoint_num_gpus": amounts.get("GPU", 0),
            **({"entrypoint_memory": int(amounts["memory"])} if amounts.get("memory") else {}),
            "entrypoint_resources": own,
            "metadata": {"source": "tapfinger"},
        }
        answer = self._call("POST", "/api/jobs/", json=body)
        if answer.is_success or "already exists" in answer.text:
            return
        if answer.status_code == 400:
            raise LaunchFailed(f"Ray does not take the job: {answer.text.strip()[-300:]}")
        self._json(answer)

    def status(self, ident: str) -> str:
        """PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED; empty for a job that Ray does not know."""
        answer = self._call("GET", f"/api/jobs/{ident}")
        return "" if answer.status_code == 404 else str(self._json(answer)["status"])

    def exit_code(self, ident: str) -> int | None:
        """Exit code of the job's command; None if it has not run and ended."""
        answer = self._call("GET", f"/api/jobs/{ident}")
        code = None if answer.status_code == 404 else self._json(answer).get("driver_exit_code")
        return None if code is None else int(code)

    def gone(self, ident: str) -> bool:
        """Whether the job's resources are free: Ray reports the end of a job slightly before they are."""
        asked = {
            "filter_keys": "name",
            "filter_predicates": "=",
            "filter_values": f"_ray_internal_job_actor_{ident}",
            "detail": 1,
        }
        data = self._json(self._call("GET", "/api/v0/actors", params=asked))
        return all(actor["state"] == "DEAD" for actor in data["data"]["result"]["result"])

    def stop(self, ident: str) -> None:
        """Ask Ray to stop a job; this has no effect on a job that waits for resources."""
        self._call("POST", f"/api/jobs/{ident}/stop")

    def log(self, ident: str) -> str:
        """What the job's command has written; nothing of it if that is too long, which the task may have seen to."""
        body = bytearray()
        try:
            with self._http.stream("GET", f"/api/jobs/{ident}/logs") as answer:
                for piece in answer.iter_bytes():
                    body += piece
                    if len(body) > MAX_LOG:
                        return ""
        except httpx.HTTPError as error:
            raise RayUnreachable(f"no answer from Ray at {self._address}: {error}") from None
        whole = self._admitted(httpx.Response(answer.status_code, content=bytes(body), request=answer.request))
        return "" if whole.status_code == 404 else str(self._json(whole)["logs"] or "")
