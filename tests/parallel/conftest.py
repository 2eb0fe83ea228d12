"""A real Ray cluster on this machine; each process of a test run has its own."""

import pytest
from ports import free_port
from ray_starting import started, with_token


@pytest.fixture(scope="session")
def cluster():
    """Address of a head with two CPUs that asks for a token, which this process and its children have."""
    env = with_token()

    def options():
        # An address of this machine's own: 127.0.0.1 would be replaced by the one other machines see.
        address = f"127.0.0.2:{free_port()}"
        words = [f"--port={address.split(':')[1]}", "--node-ip-address=127.0.0.2", "--num-cpus=2"]
        return address, [*words, "--include-dashboard=false"]

    with pytest.MonkeyPatch.context() as patch, started(options, env, lambda _, said: STARTED in said) as address:
        for name, value in env.items():
            patch.setenv(name, value)
        yield address


STARTED = "Ray runtime started"
