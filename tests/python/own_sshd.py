"""An sshd of our own on this machine, and the ssh configurations that reach it.

    server = own_sshd.Server(folder)
    server.start()
    ... f"ssh -F {folder}/config" reaches hosts node*: this machine
    server.stop()

In ``folder``: ``config`` knows host and user, ``stranger`` does not know the host's key, ``refused`` has a
key that the host does not know.
"""

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import time

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/bin:/sbin:/bin")
PATIENCE = 90


def why_not():
    """Why there is none here; None where there can be."""
    return "no sshd here (openssh-server)" if SSHD is None or shutil.which("ssh-keygen") is None else None


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.05)


def answers(port):
    with contextlib.closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Server:
    def __init__(self, folder):
        self.folder, self.port, self.process = folder, free_port(), None
        for name in ("host", "user", "nobody"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        (folder / "authorized").write_text((folder / "user.pub").read_text())
        (folder / "known").write_text(f"node ssh-ed25519 {(folder / 'host.pub').read_text().split()[1]}\n")
        (folder / "sshd_config").write_text(
            f"ListenAddress 127.0.0.1:{self.port}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\n"
            "StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\nPidFile none\n")
        for name, known, user in (("config", "known", "user"), ("stranger", "nothing", "user"),
                                  ("refused", "known", "nobody")):
            (folder / name).write_text(
                "Host node*\n  HostName 127.0.0.1\n"
                f"Host *\n  HostKeyAlias node\n  Port {self.port}\n  User {getpass.getuser()}\n"
                f"  IdentityFile {folder}/{user}\n  IdentitiesOnly yes\n  UserKnownHostsFile {folder}/{known}\n"
                "  GlobalKnownHostsFile /dev/null\n")

    def start(self):
        """Returns when it answers; False where it does not start."""
        if os.geteuid() == 0:
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
        self.process = subprocess.Popen([SSHD, "-D", "-e", "-f", self.folder / "sshd_config"],
                                        stderr=(self.folder / "log").open("w"))
        wait_for(lambda: answers(self.port) or self.process.poll() is not None)
        return self.process.poll() is None

    def stop(self):
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
            self.process = None
