"""A Hub with one gated model, for HF_ENDPOINT; ends with its stdin.

hub.py PORT SHA256 - of the token that it wants
"""

import hashlib
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0" * 39 + "1"
WORDS = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "number", *map(str, range(10)),
    *(f"##{digit}" for digit in range(10)),
]  # fmt: skip
FILES = {
    "config.json": json.dumps({
        "model_type": "bert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 32, "max_position_embeddings": 64, "vocab_size": len(WORDS),
    }),
    "tokenizer_config.json": json.dumps({"tokenizer_class": "BertTokenizer"}),
    "vocab.txt": "".join(f"{word}\n" for word in WORDS),
}  # fmt: skip


class Hub(BaseHTTPRequestHandler):
    """A server that answers as much of the Hub's protocol as snapshot_download needs."""

    def do_GET(self) -> None:
        self.answer()

    def do_HEAD(self) -> None:
        self.answer()

    def answer(self) -> None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        path = self.path.partition("?")[0]
        name = path.rpartition("/")[2]
        files = [
            {"type": "file", "path": file, "rfilename": file, "size": len(text), "oid": "0" * 40}
            for file, text in FILES.items()
        ]
        if hashlib.sha256(token.encode()).hexdigest() != sys.argv[2]:
            self.say(401, "gated", {"X-Error-Code": "GatedRepo", "X-Error-Message": "gated"})
        elif "/tree/" in path:
            self.say(200, json.dumps(files))
        elif path.startswith("/api/models/"):
            about = {"id": "lab/gated", "sha": COMMIT, "siblings": files, "tags": []}
            self.say(200, json.dumps(about))
        elif name in FILES:
            etag = hashlib.sha256(FILES[name].encode()).hexdigest()
            self.say(200, FILES[name], {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})
        else:
            self.say(404, "none", {"X-Error-Code": "EntryNotFound"})

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def say(self, code: int, text: str, headers: dict[str, str] | None = None) -> None:
        body = text.encode()
        self.send_response(code)
        for key, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def end() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=end, daemon=True).start()
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Hub)
    print("ready", flush=True)
    server.serve_forever()
