"""A server of tokens by OAuth's client credentials. Its tokens are unsigned: a validator of Kafka's own takes them."""

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs

JAAS = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
"""Of a broker's listener that lets such tokens in."""


@dataclass(kw_only=True)
class TokenServer:
    """What it knows of clients, and what it was asked."""

    clients: dict[str, str]
    """Secrets by the client's id."""
    seconds: float = 3600.0
    """Lifetime of a token."""
    url: str = ""
    issued: list[str] = field(default_factory=list)
    scopes: set[str] = field(default_factory=set)

    def answer(self, login: str, body: str) -> tuple[int, dict[str, object]]:
        """Return the status and the content of an answer."""
        client, _, secret = base64.b64decode(login.removeprefix("Basic ")).decode().partition(":")
        asked = {name: values[0] for name, values in parse_qs(body).items()}
        if asked.get("grant_type") != "client_credentials" or self.clients.get(client) != secret:
            return 401, {"error": "invalid_client"}
        self.scopes.add(asked.get("scope", ""))
        now = time.time()
        claims = {"sub": client, "iat": int(now), "exp": int(now + self.seconds), "jti": f"{now}"}
        token = ".".join((_part({"alg": "none"}), _part(claims), ""))
        self.issued.append(token)
        return 200, {"access_token": token, "token_type": "bearer", "expires_in": int(self.seconds)}


@contextmanager
def serving(clients: dict[str, str]) -> Iterator[TokenServer]:
    """Give a server that runs."""
    tokens = TokenServer(clients=clients)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            if self.path == "/moved":
                self.send_response(302)
                self.send_header("Location", tokens.url)
                self.end_headers()
                return
            if self.path == "/busy":
                self.send_error(503)
                return
            if self.path == "/strange":
                status, content = 200, {"token": "none"}
            else:
                status, content = tokens.answer(self.headers.get("Authorization") or "", body)
            text = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        tokens.url = f"http://127.0.0.1:{server.server_port}/token"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield tokens
        server.shutdown()
        thread.join()


def _part(content: dict[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")
