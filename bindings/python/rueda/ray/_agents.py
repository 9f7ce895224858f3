"""ruedarun's agents on the nodes of Ray: one actor for each, which holds the resources of the node's ranks.

    ruedarun ──> _shell.py ──unix socket──> Agents (the executor's process) ──> _AgentHost (an actor) ──> agent
       ^                                                                                                   │
       └──────────────────────────── gRPC, as with ssh ─────────────────────────────────────────────────────┘

The agent's ticket, which is secret, goes as an actor's argument. What ranks leave in their folder comes back as
the actor's result.
"""

import base64
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time

import ray
import rueda_launcher
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from rueda.compat import run_task, until_parent_ends
from rueda.ray._callbacks import Forwarder

END_SECONDS = 15  # for agents, after the job has ended


class _AgentHost:
    """Runs an agent; ends it when the actor ends."""

    def run(self, arguments, ticket, folder, files, queue):
        """(exit code, output, {name: bytes of what the ranks have left in the folder})"""
        is_own = not os.path.isdir(folder)  # nodes of a test's cluster share a file system
        if is_own:
            os.mkdir(folder, 0o700)
            for name, data in files.items():
                run_task.leave(os.path.join(folder, name), data)
        elif os.stat(folder).st_uid != os.geteuid():
            raise PermissionError(f"{folder} belongs to somebody else")
        guard = [sys.executable, "-I", "-S", os.path.abspath(until_parent_ends.__file__)]
        process = subprocess.Popen(
            [*guard, str(os.getpid()), rueda_launcher.launcher(), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            with Forwarder(folder, queue):
                output, _ = process.communicate(ticket)
            left = {}
            for name in set(os.listdir(folder)) - set(files) if is_own else ():
                if name.endswith((".pickle", ".txt")):
                    with open(os.path.join(folder, name), "rb") as file:
                        left[name] = file.read()
        finally:
            if is_own:
                shutil.rmtree(folder, ignore_errors=True)
        return process.returncode, output.decode("utf-8", "replace"), left


class Agents:
    """Starts agents where ruedarun asks for them.

    Parameters
    ----------
    folder : str
        Of this user alone: for the socket, and for what ranks leave.
    files : dict
        What ranks find in a folder of this name on their node: {name: bytes}.
    find : callable
        ``(Ray's id of the node, resources)`` of a host by its name; KeyError: there is none.
    queue : ray.util.queue.Queue or None
        Where what ranks log goes.
    """

    def __init__(self, folder, files, find, queue=None):
        self._folder, self._files, self._find, self._queue = folder, files, find, queue
        self._lock = threading.Lock()
        self._actors = {}  # name of a host: its actor, while the agent runs
        self._threads = []
        self.path = os.path.join(folder, "agents")
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(self.path)
        self._door.listen(64)
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def hosts(self):
        """Names of those on which an agent runs or is being started."""
        with self._lock:
            return set(self._actors)

    def close(self):
        """Waits for agents to end, and ends those that do not."""
        self._door.shutdown(socket.SHUT_RDWR)  # wakes accept
        self._accepting.join()
        self._door.close()
        deadline = time.monotonic() + END_SECONDS
        for thread in self._threads:
            thread.join(max(0, deadline - time.monotonic()))
        with self._lock:
            left = list(self._actors.values())
        for actor in left:
            ray.kill(actor)

    def _accept(self):
        while True:
            try:
                connection, _ = self._door.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection):
        with connection, connection.makefile("rb") as lines:
            line = lines.readline()
            if not line:
                return
            try:
                code, output = self._run(json.loads(line))
            except Exception as error:
                code, output = 1, f"{type(error).__name__}: {error}".splitlines()[0] + "\n"
            try:
                connection.sendall(json.dumps({"code": code, "output": output}).encode() + b"\n")
            except OSError:
                pass  # ruedarun has ended

    def _run(self, request):
        host = request["host"]
        try:
            node, resources = self._find(host)
        except KeyError:
            return 1, f"Ray has no node {host} any more\n"
        options = {
            "num_cpus": resources.get("CPU", 0),
            "num_gpus": resources.get("GPU", 0),
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
        }
        actor = ray.remote(_AgentHost).options(**options).remote()
        with self._lock:
            self._actors[host] = actor
        try:
            ticket = base64.b64decode(request["input"])
            arguments = request["command"][1:]  # its program is where this package is on that node
            code, output, left = ray.get(
                actor.run.remote(arguments, ticket, self._folder, self._files, self._queue)
            )
        finally:
            with self._lock:
                if self._actors.get(host) is actor:
                    del self._actors[host]
            ray.kill(actor)
        for name, data in left.items():
            if os.path.basename(name) == name and not os.path.exists(os.path.join(self._folder, name)):
                run_task.leave(os.path.join(self._folder, name), data)
        return code, output
