"""Tiny real wheels, and local package indexes that serve them or misbehave."""

import html
import io
import ssl
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

ANY = "py3-none-any"
SILENCE_SECONDS = 4


def write_wheel(
    folder: Path, name: str, version: str, *requires: str, tag: str = ANY, brings: str = ""
) -> Path:
    """Write a wheel.

    Takes what it requires, its tag, and the metadata of a package that it brings along.
    """
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": f'__version__ = "{version}"\n' * 100,
        f"{name}/_vendor/inner-9.dist-info/METADATA": brings,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + "".join(f"Requires-Dist: {line}\n" for line in requires),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    if not brings:
        del files[f"{name}/_vendor/inner-9.dist-info/METADATA"]
    record = "".join(f"{path},,{len(text)}\n" for path, text in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for inner, text in files.items():
            archive.writestr(inner, text)
    return path


BACKEND = """import zipfile

def build_wheel(folder, settings=None, metadata=None):
    {before}
    files = {{
        "{name}/__init__.py": "",
        "{name}-{version}.dist-info/METADATA":
            "Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n",
        "{name}-{version}.dist-info/WHEEL":
            "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: {tag}\\n",
        "{name}-{version}.dist-info/RECORD": "",
    }}
    wheel = "{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(folder + "/" + wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return wheel
"""


def write_sources(folder: Path, name: str, version: str, before: str = "pass") -> Path:
    """Write a source distribution that is built without any other package.

    Takes a statement that the build begins with.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "pyproject.toml": "[build-system]\nrequires = []\n"
        'build-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": BACKEND.format(name=name, version=version, tag=ANY, before=before),
    }
    path = folder / f"{name}-{version}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for inner, text in files.items():
            entry = tarfile.TarInfo(f"{name}-{version}/{inner}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return path


def left(cache: Path) -> list[str]:
    """Return the contents of a cache of wheels, without its locks."""
    return [path.name for path in cache.glob("*") if not path.name.endswith(".lock")]


class Indexes(ThreadingHTTPServer):
    """Package indexes (PEP 503): a folder below `root` each, and some that misbehave.

    /404 and /500 answer with that status, /plain with plain text, /empty with a page without links,
    /silent too late. Wheels whose name begins with "yanked" are.
    """

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = root
        self.asked: list[str] = []

    def url(self, name: str) -> str:
        scheme = "https" if isinstance(self.socket, ssl.SSLSocket) else "http"
        return f"{scheme}://127.0.0.1:{self.server_port}/{name}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that did not wait for a late response."""


class _Handler(BaseHTTPRequestHandler):
    server: Indexes

    def do_GET(self) -> None:
        _, index, package, file, *_ = (unquote(self.path) + "//").split("/")
        self.server.asked.append(f"{index}/{package}")
        if index in ("404", "500"):
            self.send_error(int(index))
        elif index == "plain":
            self.answer(b"hello", "text/plain")
        elif index == "empty":
            self.answer(b"<!DOCTYPE html><html><body>hello</body></html>")
        elif index == "silent":
            time.sleep(SILENCE_SECONDS)
        elif file:
            self.answer((self.server.root / index / file).read_bytes(), "application/zip")
        else:
            self.list_wheels(index, package)

    def list_wheels(self, index: str, package: str) -> None:
        paths = sorted((self.server.root / index).glob(f"{package.replace('-', '_')}-*.whl"))
        if not paths:
            self.send_error(404)
            return
        links = [
            f'<a href="/{index}/{package}/{html.escape(path.name.replace("+", "%2B"))}"'
            f"{' data-yanked=broken' * path.name.startswith('yanked')}>{path.name}</a>"
            for path in paths
        ]
        self.answer(f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>".encode())

    def answer(self, content: bytes, kind: str = "text/html") -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@contextmanager
def serve(root: Path, certificate: Path | None = None) -> Iterator[Indexes]:
    """Serve the indexes below a folder, by HTTPS if a certificate's file is given."""
    with Indexes(root) as server:
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()
