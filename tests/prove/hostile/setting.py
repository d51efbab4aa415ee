"""The host as a hostile program would like to find it: secrets in files, in the environment and in an open descriptor,
servers that greet whoever reaches them, a process to kill, a folder to write into.
"""

import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

SECRET_NAME = "HOSTILE_TEST_KEY"


class Setting:
    """Stands while the block lasts. `given` is what a program is told; the secrets are not in it."""

    def __init__(self, *, bare: bool) -> None:
        self.bare = bare
        self.secret = f"SECRET-{secrets.token_hex(12)}"
        self.token = f"TOKEN-{secrets.token_hex(12)}"
        self.mark = f"hostile-{secrets.token_hex(3)}"
        self.processes = 32
        """How many a program may have."""
        self.reached: list[str] = []
        """Servers that somebody has spoken to."""

    def __enter__(self) -> "Setting":
        self._folder = tempfile.TemporaryDirectory(prefix="hostile-", dir="/tmp")
        self.folder = Path(self._folder.name)
        self.folder.chmod(0o755)
        self.outside = self.folder / "outside"
        self.outside.mkdir()
        self.outside.chmod(0o777)
        self.tmp_secret = self.folder / "secret"
        self.tmp_secret.write_text(self.secret)
        self.tmp_secret.chmod(0o644)
        self.home_secret = Path(os.path.expanduser("~")) / f".{self.mark}"
        self.home_secret.write_text(self.secret)
        self.home_secret.chmod(0o600 if not self.bare else 0o644)
        os.environ[SECRET_NAME] = self.secret
        self.descriptor = os.open(self.tmp_secret, os.O_RDONLY)
        os.set_inheritable(self.descriptor, True)
        self.victim = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        self._servers = [socket.create_server(("127.0.0.1", 0)), self._unix(str(self.folder / "socket")),
                         self._unix("\0" + self.mark)]  # fmt: skip
        (self.folder / "socket").chmod(0o777)
        self._datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._datagrams.bind(("127.0.0.1", 0))
        for server in self._servers:
            threading.Thread(target=self._greet, args=(server,), daemon=True).start()
        threading.Thread(target=self._answer, daemon=True).start()
        return self

    def __exit__(self, *problem: object) -> None:
        for server in (*self._servers, self._datagrams):
            server.close()
        self.victim.kill()
        self.victim.wait()
        os.close(self.descriptor)
        self.home_secret.unlink(missing_ok=True)
        self._folder.cleanup()
        os.environ.pop(SECRET_NAME, None)

    @property
    def given(self) -> dict[str, Any]:
        """What a program is told."""
        with open("/proc/partitions") as file:
            rows = [line.split() for line in file.read().splitlines()[2:]]
        library = str(Path(os.__file__).parent)
        return {
            "bare": self.bare,
            "token": self.token,
            "mark": self.mark,
            "tmp_secret": str(self.tmp_secret),
            "home_secret": str(self.home_secret),
            "secret_name": SECRET_NAME,
            "outside": [str(self.outside)] + ["/usr", "/etc", "/var", "/lib", "/root", "/", library] * (not self.bare),
            "marker": sys.argv[0],
            "unix_socket": str(self.folder / "socket"),
            "abstract": self.mark,
            "port": self._servers[0].getsockname()[1],
            "udp_port": self._datagrams.getsockname()[1],
            "metadata": ["127.0.0.1"] if self.bare else ["169.254.169.254", "127.0.0.1", "255.255.255.255", "8.8.8.8"],
            "disks": [(int(row[0]), int(row[1])) for row in rows][:4],
            "victim": self.victim.pid,
            "channels": 0,
            "processes": self.processes,
        }

    def harm(self) -> list[str]:
        """What has happened to the host."""
        complaints = [f"somebody spoke to {name}" for name in self.reached]
        if list(self.outside.iterdir()):
            complaints.append(f"the host's folder holds {[path.name for path in self.outside.iterdir()]}")
        if self.victim.poll() is not None:
            complaints.append("a process of the host was killed")
        if self.tmp_secret.read_text() != self.secret:
            complaints.append("a file of the host was changed")
        if socket.gethostname() == "hostile":
            complaints.append("the host was renamed")
        return complaints

    def left_running(self) -> list[int]:
        """Processes of hostile programs that are still there."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if (path / "comm").read_text().strip() == self.mark and " Z " not in (path / "stat").read_text():
                    found.append(int(path.name))
            except OSError:
                continue
        return found

    def _unix(self, address: str) -> socket.socket:
        server = socket.socket(socket.AF_UNIX)
        server.bind(address)
        server.listen()
        return server

    def _greet(self, server: socket.socket) -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            self.reached.append(str(server.getsockname()))
            with client:
                client.sendall(self.secret.encode())

    def _answer(self) -> None:
        while True:
            try:
                _, address = self._datagrams.recvfrom(100)
            except OSError:
                return
            if address[1]:
                self.reached.append("the name server")
                self._datagrams.sendto(self.secret.encode(), address)
