"""`python metadata_stage.py FOLDER COMMAND...`: runs a command in this network, which has a metadata service.

Its two addresses answer on port 80; what they are asked for is written to FOLDER/asked, a line each. `/wait` on the
loopback answers once a worker has asked for notices of preemption.
"""

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import AF_INET, AF_INET6

ADDRESSES = (("127.0.0.1", AF_INET), ("169.254.169.254", AF_INET), ("fd00:ec2::254", AF_INET6))
WATCHED = threading.Event()
SECONDS = 20.0


class Metadata(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/wait":
            assert WATCHED.wait(SECONDS)
        body = b'{"DocumentIncarnation": 1, "Events": []}' if "scheduledevents" in self.path else b"this-machine"
        with ASKED.open("a") as asked:
            asked.write(f"{self.path.partition('?')[0]}\n")
        if "scheduledevents" in self.path:
            WATCHED.set()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    def __init__(self, address: str, family: int) -> None:
        self.address_family = family
        super().__init__((address, 80), Metadata)


if __name__ == "__main__":
    ASKED = Path(sys.argv[1]) / "asked"
    for each in ADDRESSES:
        threading.Thread(target=Server(*each).serve_forever, daemon=True).start()
    sys.exit(subprocess.run(sys.argv[2:], check=False).returncode)
