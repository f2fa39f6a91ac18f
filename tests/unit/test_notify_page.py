"""docs/notify.md: its script mails the state of a run, to a mail server on loopback."""

import json
import re
import socketserver
import subprocess
import sys
import threading
from email import message_from_bytes, policy
from pathlib import Path

from tests.programs import ROOT
from tests.unit.supervisor.test_notifier import ATTACK

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN = {"run": "r-1", "text": "r-1 failed after 0:00:05: a\u00e9 Bcc: x@site", "tags": ATTACK}


class Mail(socketserver.StreamRequestHandler):
    """A mail server (RFC 5321) for one message, which it keeps."""

    def handle(self) -> None:
        self.wfile.write(b"220 loopback\r\n")
        lines: list[bytes] = []
        for line in self.rfile:
            if lines:
                lines.append(line)
                if line == b".\r\n":
                    self.server.mail = b"".join(lines[1:-1])  # type: ignore[attr-defined]
                    self.wfile.write(b"250 kept\r\n")
                    lines = []
            elif line.upper() == b"DATA\r\n":
                lines.append(line)
                self.wfile.write(b"354 go on\r\n")
            else:
                self.wfile.write(b"221 bye\r\n" if line.upper() == b"QUIT\r\n" else b"250 fine\r\n")


def test_the_script_mails_the_state_of_a_run(tmp_path: Path) -> None:
    [script] = BLOCK.findall((ROOT / "docs/notify.md").read_text(encoding="utf-8"))
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Mail) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        here = f"127.0.0.1:{server.server_address[1]}"
        assert script.count('"mail.example.com"') == 1
        (tmp_path / "mail-run").write_text(script.replace("mail.example.com", here))
        subprocess.run(
            [sys.executable, tmp_path / "mail-run"], input=json.dumps(RUN), text=True, check=True,
            timeout=60,
        )  # fmt: skip
        server.shutdown()
        mail = message_from_bytes(server.mail, policy=policy.default)  # type: ignore[attr-defined]
    assert (mail["Subject"], mail["To"], mail["Bcc"]) == (RUN["text"], "ops@example.com", None)
    assert json.loads(mail.get_content()) == RUN
