"""What all tests share: how hard hypothesis looks, one thread a process, and a real S3 server."""

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from s3_server import S3Server

# `ci` looks at the same, bounded set of examples every time; HYPOTHESIS_PROFILE=explore looks at many new ones.
settings.register_profile(
    "ci",
    derandomize=True,
    max_examples=50,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# Ranks and workers are processes here: with a thread pool in each they would only get in each other's way.
os.environ.setdefault("OMP_NUM_THREADS", "1")


# What a shell starts in the background ignores interrupts, its children too, and some tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none; torch is only asked when a test wants to know."""
    wanting = [item for item in items if "gpu" in item.keywords]
    if not wanting:
        return
    import torch  # noqa: PLC0415

    if not torch.cuda.is_available():
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason="no GPU on this machine"))


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Start a real S3 server."""
    server = S3Server(tmp_path_factory.mktemp("s3"))
    server.start()
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="session")
def s3_endpoint(s3_server: S3Server) -> str:
    """Return the server's address."""
    return s3_server.endpoint


@pytest.fixture(scope="session")
def s3_options(s3_server: S3Server) -> dict[str, object]:
    """Return what fsspec needs to write to `s3://bucket`, which is there."""
    s3_server.make_bucket()
    return s3_server.options
