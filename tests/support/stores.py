"""Emulators of Google Cloud Storage and S3 on loopback, behind a proxy that injects faults."""

import collections
import contextlib
import http.client
import http.server
import importlib
import logging
import os
import random
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator

import pytest

from tfm.io.remote import open_file_system

BUCKET = "bucket"
PACKAGES = {"gs": ("gcsfs", "gcp_storage_emulator"), "s3": ("s3fs", "moto.server")}
FAULTS = ("error", "cut", "slow", "hang")
ERROR = b"<Error><Code>ServiceUnavailable</Code><Message>try again</Message></Error>"
HOP_HEADERS = {"connection", "transfer-encoding", "content-length", "keep-alive"}


class FaultProxy:
    """An HTTP proxy that answers some requests with faults, as a store in trouble does.

    Args:
      port: port of the store.

    Attributes:
      share: share of the requests that meet a random fault.
      is_down: whether each request gets the status 503.
      faults: how often each fault was injected.
      received, sent: bytes of the bodies that clients sent and received.
    """

    def __init__(self, port: int):
        self.share, self.is_down = 0.0, False
        self.faults: collections.Counter[str] = collections.Counter()
        self.received = self.sent = 0
        chance, proxy = random.Random(0), self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def handle_any(self):
                body = self._read_body()
                proxy.received += len(body)
                fault = "down" if proxy.is_down else ""
                if not fault and chance.random() < proxy.share:
                    fault = chance.choice(FAULTS)
                proxy.faults[fault or "none"] += 1
                if fault in ("down", "error"):
                    self._answer(503, [], ERROR)
                elif fault == "cut":
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                else:
                    time.sleep({"slow": 0.5, "hang": 6}.get(fault, 0))
                    self._forward(body)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = handle_any

            def _read_body(self):
                if "chunked" not in self.headers.get("Transfer-Encoding", ""):
                    return self.rfile.read(int(self.headers.get("Content-Length", 0)))
                body = b""
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return body

            def _forward(self, body):
                store = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                headers = {
                    name: value for name, value in self.headers.items() if name.lower() not in HOP_HEADERS
                }
                store.request(
                    self.command, self.path, body or None, headers | {"Content-Length": str(len(body))}
                )
                answer = store.getresponse()
                content = answer.read()
                with contextlib.suppress(OSError):  # the client has given up
                    self._answer(answer.status, answer.getheaders(), content)
                store.close()

            def _answer(self, status, headers, content):
                self.send_response_only(status)
                for name, value in headers:
                    if name.lower() not in HOP_HEADERS:
                        self.send_header(name, value)
                size = (
                    dict(headers).get("Content-Length", "0") if self.command == "HEAD" else str(len(content))
                )
                self.send_header("Content-Length", size)
                self.end_headers()
                if self.command != "HEAD":
                    proxy.sent += len(content)
                    self.wfile.write(content)

        class Server(http.server.ThreadingHTTPServer):
            request_queue_size = 128
            daemon_threads = True

            def handle_error(self, *_):
                pass  # clients that were killed

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Closes the proxy."""
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def run_store(protocol: str) -> Iterator[tuple[str, FaultProxy, dict[str, str]]]:
    """Starts an emulator with a bucket, behind a proxy. Sets the environment that its library reads.

    Args:
      protocol: "gs" or "s3".

    Yields:
      (URL of the bucket, the proxy, the environment).
    """
    for name in PACKAGES[protocol]:
        pytest.importorskip(name, reason=f"the package {name.split('.')[0]} is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    if protocol == "s3":
        server = importlib.import_module("moto.server").ThreadedMotoServer("127.0.0.1", port, verbose=False)
    else:
        emulator = importlib.import_module("gcp_storage_emulator.server")
        server = emulator.create_server("127.0.0.1", port, in_memory=True, default_bucket=BUCKET)
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # otherwise, moto logs each request
    server.start()
    proxy = FaultProxy(port)
    environment = {
        "AWS_ACCESS_KEY_ID": "key-of-the-test",
        "AWS_SECRET_ACCESS_KEY": "secret-of-the-test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": proxy.url,
        "STORAGE_EMULATOR_HOST": proxy.url,
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # the emulator has no gRPC
    }
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        url = f"{protocol}://{BUCKET}"
        if protocol == "s3":  # moto keeps the objects of earlier tests
            reset = urllib.request.Request(f"http://127.0.0.1:{port}/moto-api/reset", method="POST")
            urllib.request.urlopen(reset).close()
        files, _ = open_file_system(url)
        files.makedirs(BUCKET, exist_ok=True)
        yield url, proxy, environment
    finally:
        proxy.close()
        server.stop()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        for cls in type(files).__mro__:  # fsspec keeps file systems, with the port of this emulator
            if hasattr(cls, "clear_instance_cache"):
                cls.clear_instance_cache()
