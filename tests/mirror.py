"""A site's package mirror with its own CA, and the proxy that leads to it.

`python -m tests.mirror CONFIG` runs them in a separate network; CONFIG is `Config` as JSON.
"""

import json
import select
import shutil
import socket
import ssl
import sys
import threading
import urllib.request
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import unquote

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

DAY = timedelta(days=1)


class Authority:
    """A CA of the site, which other machines do not know."""

    def __init__(self, name: str = "CA of the site") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        signs = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        self._certificate = (
            _begun(self._name, self._name, self._key.public_key(), 2)
            .add_extension(constraints, critical=True)
            .add_extension(signs, critical=True)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def pem(self) -> str:
        """The CA's certificate."""
        return self._certificate.public_bytes(serialization.Encoding.PEM).decode()

    def certificate(self, name: str, days: int = 2) -> str:
        """Create a server's key and a certificate for `days` days; negative: expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        try:
            alternative: x509.GeneralName = x509.IPAddress(ip_address(name))
        except ValueError:
            alternative = x509.DNSName(name)
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        signed = (
            _begun(subject, self._name, key.public_key(), days)
            .add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        secret = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return secret.decode() + signed.public_bytes(serialization.Encoding.PEM).decode()


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 30 * DAY)
        .not_valid_after(now + days * DAY)
    )


def with_tls(server: ThreadingHTTPServer, certificate: Path) -> None:
    """Make a server use TLS; each connection's handshake runs in its own thread."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )


class Mirror(ThreadingHTTPServer):
    """A server of a folder's wheels at /simple (PEP 503), its repodata, and a distribution."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], wheels: Path, upstream: str = "") -> None:
        super().__init__(address, _MirrorHandler)
        self.wheels, self.upstream = wheels, upstream

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that reject the certificate."""


class _MirrorHandler(BaseHTTPRequestHandler):
    server: Mirror

    def do_GET(self) -> None:
        _, first, name, *_ = (unquote(self.path) + "//").split("/")
        if first == "simple":
            paths = sorted(self.server.wheels.glob(f"{name.replace('-', '_')}-*.whl"))
            links = "".join(f'<a href="/wheels/{one.name}">{one.name}</a>' for one in paths)
            page = f"<!DOCTYPE html><html><body>{links}</body></html>".encode()
            self.begin("text/html", len(page))
            self.wfile.write(page)
        elif first in ("wheels", "repodata"):
            path = self.server.wheels / ("" if first == "wheels" else first) / name
            self.begin("application/zip", path.stat().st_size)
            with path.open("rb") as file:
                shutil.copyfileobj(file, self.wfile)
        else:
            _give(self, f"{self.server.upstream}{self.path}")

    def begin(self, kind: str, size: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(size))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class Proxy(ThreadingHTTPServer):
    """A proxy of HTTP and of TLS (CONNECT), which alone knows where some names are.

    Attributes:
        refuses: the status that everybody gets, or 0.
        asked: the hosts and ports that it was asked for.
    """

    daemon_threads = True

    def __init__(
        self, address: tuple[str, int], names: dict[str, tuple[str, int]], refuses: int = 0
    ) -> None:
        super().__init__(address, _ProxyHandler)
        self.names, self.refuses = names, refuses
        self.asked: list[str] = []


class _ProxyHandler(BaseHTTPRequestHandler):
    server: Proxy

    def do_CONNECT(self) -> None:
        self.server.asked.append(self.path)
        if self.server.refuses:
            self.send_error(self.server.refuses)
            return
        host, _, port = self.path.rpartition(":")
        where = self.server.names.get(host, (host, int(port)))
        try:
            there = socket.create_connection(where, 20)
        except OSError:
            self.send_error(502)
            return
        self.send_response(200)
        self.end_headers()
        with closing(there), suppress(OSError):
            _relay(self.connection, there)
        self.close_connection = True

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if self.server.refuses:
            self.send_error(self.server.refuses)
        else:
            _give(self, self.path)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def _relay(one: socket.socket, other: socket.socket) -> None:
    peers = {one: other, other: one}
    while True:
        ready, _, _ = select.select([one, other], [], [], 120)
        for side in ready:
            data = side.recv(1 << 16)
            if not data:
                return
            peers[side].sendall(data)
        if not ready:
            return


def _give(handler: BaseHTTPRequestHandler, url: str) -> None:
    """Respond with the contents of a URL."""
    try:
        with urllib.request.urlopen(url, timeout=60) as found:
            handler.send_response(200)
            if length := found.headers["Content-Length"]:
                handler.send_header("Content-Length", length)
            handler.end_headers()
            shutil.copyfileobj(found, handler.wfile)
    except urllib.error.HTTPError as error:
        handler.send_error(error.code)
    except OSError:
        handler.send_error(502)


@dataclass
class Config:
    """Configuration of a network in which only the proxies know the mirrors' names.

    Attributes:
        address: the address of all servers.
        wheels: the folder with the mirrors' wheels.
        upstream: the source of a distribution's packages.
        mirrors: the file with the certificate and key of each, by its name.
        proxies: pairs of a port and the status that all get there, 0 for what is asked for.
        ready: a file that is made when all listen.
    """

    address: str
    wheels: str
    upstream: str
    mirrors: dict[str, str]
    proxies: list[tuple[int, int]]
    ready: str


def main() -> None:
    config = Config(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    servers: list[ThreadingHTTPServer] = []
    names = {}
    for name, file in config.mirrors.items():
        mirror = Mirror((config.address, 0), Path(config.wheels), config.upstream)
        with_tls(mirror, Path(file))
        servers.append(mirror)
        names[name] = (config.address, mirror.server_port)
    servers += [Proxy((config.address, port), names, status) for port, status in config.proxies]
    threads = [threading.Thread(target=server.serve_forever) for server in servers]
    for thread in threads:
        thread.start()
    Path(config.ready).touch()


if __name__ == "__main__":
    main()
