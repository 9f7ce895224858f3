"""Trees of files with a Debian in them, and programs that run there and see nothing of this machine.

A program in a tree has namespaces of its own (mounts, processes, host name, and network unless it is given a
host of namespaces.Lab), no compiler but the tree's, and the rights of one user who can get no others.
"""

import os
import pathlib
import shutil
import subprocess

import pytest

# sh -c: the tree, a host name, a user's number, a folder of the tree to start in, what else is to be mounted (sh, with
# $root), then the command.
ENTER = """set -e
root=$1 name=$2 user=$3 folder=$4 mounts=$5; shift 5
hostname "$name"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
eval "$mounts"
exec chroot "$root" setpriv --reuid "$user" --regid "$user" --clear-groups --no-new-privs \\
  sh -c 'cd "$0" && exec "$@"' "$folder" "$@"
"""
ROOT = pathlib.Path(__file__).resolve().parents[2]
USER = 1000
NO_NETWORK = ("Temporary failure resolving", "Could not connect", "Could not resolve")


def packages(sections):
    """What these sections of scripts/packages.txt list."""
    words = ["bash", "-c", f'source "{ROOT}/scripts/common.sh"; debian_packages {sections}']
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()


def why_not():
    """Why there are none here; None where there can be."""
    if shutil.which("mmdebstrap") is None:
        return "no mmdebstrap here (scripts/setup --packages containers)"
    return None if os.geteuid() == 0 else "needs root"


def debian(folder, *packages):
    """A Debian of the packages that cannot be left out and these, as a Tree in a folder."""
    done = subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(packages)}",
                           "--skip=output/dev", "bookworm", folder], capture_output=True, text=True, timeout=900)
    if any(text in done.stderr for text in NO_NETWORK):
        pytest.skip("Debian's archive cannot be reached")
    assert done.returncode == 0, done.stderr
    return Tree(folder)


class Tree:
    def __init__(self, root):
        self.root = root

    def words(self, command, user=USER, env=None, mounts="", host=None, name="bare", folder="/"):
        """What starts a command in the tree. host: of a namespaces.Lab; else there is no network but an idle loopback."""
        network = ["ip", "netns", "exec", host] if host else ["unshare", "-n", "sh", "-c", 'ip link set lo up; exec "$@"', "sh"]
        given = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", **(env or {})}
        return [*network, "unshare", "-m", "-u", "-p", "-f", "--kill-child", "env", "-i",
                *(f"{key}={value}" for key, value in given.items()), "/bin/sh", "-c", ENTER, "sh", str(self.root), name,
                str(user), str(folder), mounts, *map(str, command)]

    def run(self, *command, check=True, **how):
        done = subprocess.run(self.words(command, **how), capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
        assert not check or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def files(self):
        """All that is in it, but for what programs of the system note down."""
        noted = ("/var/log/", "/var/lib/dpkg/", "/var/cache/", "/etc/ld.so.cache", "/dev/", "/proc/", "/tmp/")
        found = set()
        for folder, names, files in os.walk(self.root):
            inside = "/" + os.path.relpath(folder, self.root)
            found.update(path for path in (os.path.normpath(f"{inside}/{name}") for name in names + files)
                         if not path.startswith(noted))
        return found
