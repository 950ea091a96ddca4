"""A server for one page and its requests, for a browser on the same machine.

It listens on 127.0.0.1 only. Every request needs the random token in its path, so that other users of the
machine and other web sites cannot use the server. The Host and Origin headers are checked, too, because a web
site could let its name resolve to 127.0.0.1. No part of a request is ever a path of the file system.
"""

import http.server
import json
import logging
import secrets
import socketserver
import sys
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from tfm.errors import UserError

ADDRESS = "127.0.0.1"
MAX_BODY_BYTES = 12 << 20  # a picture of `tfm.visualize.live.MAX_PICTURE_BYTES` in base64, and its switches
TIMEOUT = 30  # seconds without a byte of a request
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",  # the address contains the token
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}
HTML, JSON = "text/html; charset=utf-8", "application/json"
MakePage = Callable[[str], str]  # maps the path for requests to the HTML of the page
Answer = Callable[[Mapping[str, Any]], Mapping[str, Any]]
log = logging.getLogger(__name__)


class PageServer(http.server.ThreadingHTTPServer):
    """A server that answers one request after the other, on threads that do not keep the process alive.

    Attributes:
      url: address of the page, with the token.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int, make_page: MakePage, answer: Answer):
        """Listens on a port, but answers nothing before `serve_forever`.

        Args:
          port: the port. 0 chooses a free port.
          make_page: called for each visit of the page.
          answer: maps the JSON object of a request to the JSON object of its answer. The text of a UserError
            becomes the answer {"error": text}.

        Raises:
          UserError: if the port cannot be used.
        """
        try:
            super().__init__((ADDRESS, port), _Handler)
        except (OSError, OverflowError) as error:
            raise UserError(
                f"--port={port} cannot be used ({error}). Choose another port, or leave --port out."
            ) from None
        token = secrets.token_urlsafe(24)
        self.page_path, self.request_path = f"/{token}/", f"/{token}/look"
        self.url = f"http://{ADDRESS}:{self.server_port}{self.page_path}"
        self._make_page, self._answer = make_page, answer
        self._lock = threading.Lock()

    @property
    def hosts(self) -> set[str]:
        """The values of the Host header that a browser on this machine sends."""
        names = {ADDRESS, "localhost"}
        return {f"{name}:{self.server_port}" for name in names} | (names if self.server_port == 80 else set())

    def make_page(self) -> str:
        """Returns the HTML of the page."""
        with self._lock:
            return self._make_page(self.request_path)

    def answer(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the answer to a request."""
        with self._lock:
            return self._answer(request)

    def wait(self) -> None:
        """Waits until the request that is being answered has its answer."""
        with self._lock:
            pass

    def server_bind(self) -> None:
        """Binds the socket. Unlike the method of the standard library, asks no name server for a name."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = ADDRESS, int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs errors of this program. A browser that closes its connection is no error."""
        error = sys.exception()
        if not isinstance(error, OSError):
            log.error("A request has failed", exc_info=error)


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers a request for the page or for an example. Other requests get an error without details."""

    server: PageServer
    server_version, sys_version = "tfm", ""
    protocol_version = "HTTP/1.1"
    timeout = TIMEOUT

    def log_message(self, format: str, *arguments: Any) -> None:
        """Leaves out the line that http.server prints for each request, because it contains the token."""

    def do_GET(self) -> None:
        """Sends the page."""
        if not self._is_allowed(self.server.page_path):
            return
        self._respond(HTML, self.server.make_page)

    def do_POST(self) -> None:
        """Sends the answer to a request."""
        if not self._is_allowed(self.server.request_path):
            return None
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal() and len(length) < 10):
            return self._refuse(HTTPStatus.LENGTH_REQUIRED)
        if int(length) > MAX_BODY_BYTES:
            return self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        if self.headers.get_content_type() != JSON:
            return self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
        body = self.rfile.read(int(length))
        try:
            request = json.loads(body)
        except (ValueError, RecursionError):
            request = None
        if len(body) < int(length) or not isinstance(request, dict):
            return self._refuse(HTTPStatus.BAD_REQUEST)
        return self._respond(JSON, lambda: json.dumps(self.server.answer(request)))

    def _is_allowed(self, path: str) -> bool:
        """Returns whether a request has the token and comes from this server's page, or refuses it."""
        hosts = self.server.hosts
        origin = self.headers.get("Origin")
        is_own = self.headers.get("Host") in hosts and origin in {None, *(f"http://{host}" for host in hosts)}
        has_token = secrets.compare_digest(self.path.encode("utf-8", "replace"), path.encode())
        if is_own and has_token:
            return True
        self._refuse(HTTPStatus.NOT_FOUND if is_own else HTTPStatus.FORBIDDEN)
        return False

    def _respond(self, content_type: str, make_text: Callable[[], str]) -> None:
        """Sends a text, or the message of a UserError, for the page to show."""
        try:
            text = make_text()
        except UserError as error:
            content_type, text = JSON, json.dumps({"error": str(error)})
        except Exception:
            log.exception("A request has failed")
            text = json.dumps(
                {"error": "This is a bug of tfm. The terminal of tfm explore has its traceback."}
            )
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, JSON, text)
            return
        self._send(HTTPStatus.OK, content_type, text)

    def _refuse(self, status: HTTPStatus) -> None:
        """Sends an error, and closes the connection, because the body of the request is not read."""
        self.close_connection = True
        self._send(status, "text/plain; charset=utf-8", f"{status.value} {status.phrase}\n")

    def _send(self, status: HTTPStatus, content_type: str, text: str) -> None:
        content = text.encode("utf-8", "replace")
        self.send_response(status)
        for name, value in {
            **HEADERS,
            "Content-Type": content_type,
            "Content-Length": str(len(content)),
        }.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)
