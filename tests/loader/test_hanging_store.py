"""A server that has stopped to answer: the process still ends, since a training run waits for the rank that failed."""

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from streams import write_stream

SCRIPT = """
import sys, threading, time
from streampipe import build_loader, load_config
loader = build_loader(load_config(sys.argv[1]))
threading.Thread(target=lambda: next(loader), daemon=True).start()
sys.stdin.readline()
"""


@pytest.fixture
def server(corpora: Path) -> Iterator[tuple[str, threading.Event]]:
    """Serve sources over HTTP, but no part of a shard; yield the URL and what is set once one was asked for."""
    asked, ended = threading.Event(), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            data = (corpora / self.path.lstrip("/")).read_bytes()
            if self.path.endswith(".tar.zst"):
                asked.set()
                ended.wait()
                return
            span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            part = data[int(span[1]) : int(span[2]) + 1] if span else data
            self.send_response(206 if span else 200)
            self.send_header("Content-Length", str(len(part)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(part)

        def log_message(self, *_: object) -> None:
            pass

    served = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=served.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{served.server_port}", asked
    ended.set()
    served.shutdown()
    thread.join()
    served.server_close()


def test_a_process_ends_although_reads_of_it_hang(server: tuple[str, threading.Event], tmp_path: Path) -> None:
    url, asked = server
    config = write_stream(tmp_path / "stream.yaml", url)
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(config)], stdin=subprocess.PIPE, text=True)
    assert asked.wait(60)
    began = time.monotonic()
    process.communicate("end\n", timeout=60)
    assert time.monotonic() - began < 30
    assert process.returncode == 0
