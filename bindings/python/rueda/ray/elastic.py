"""`ElasticRayExecutor`: a job on the nodes that Ray has, whose ranks come and go with them.

The job is ruedarun's: its agents run in actors (`_agents`), and its list of hosts is Ray's list of nodes.
"""

import functools
import json
import math
import os
import shlex
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import Any, Optional

import ray
from rueda.compat import run as _run
from rueda.compat import run_task
from rueda.ray import _checks, _sending, _shell
from rueda.ray._agents import Agents
from rueda.ray._callbacks import Callbacks, logging_to

_LOOK_SECONDS = 1.0  # between looks at Ray's nodes


# Horovod's names of settings that say nothing here: Ray starts the processes, and there is no MPI.
_WITHOUT_EFFECT = (
    "ssh_port", "extra_mpi_args", "tcp_flag", "binding_args", "key", "start_timeout", "output_filename",
    "run_func_mode", "elastic", "timestamp_output", "prefix_output_with_timestamp",
)  # fmt: skip


@dataclass
class ElasticSettings:
    """Made by ``ElasticRayExecutor.create_settings``, which says what the fields mean. May be changed until the executor
    is made."""

    min_num_proc: int = 1
    max_num_proc: Optional[int] = None
    num_proc: Optional[int] = None
    reset_limit: Optional[int] = None
    cooldown_range: Optional[tuple] = None
    elastic_timeout: float = 600
    timeout_s: float = 30
    nics: Optional[frozenset] = None
    discovery: Any = None
    verbose: int = 0

    def checked(self):
        """Itself, with ``nics`` as a frozenset and ``cooldown_range`` as a pair; ValueError for what is none of its values."""
        where = "create_settings"
        self.min_num_proc, self.num_proc, self.max_num_proc = _checks.limits(
            where,
            ("min_num_proc", "num_proc", "max_num_proc"),
            self.min_num_proc,
            self.num_proc,
            self.max_num_proc,
        )
        self.reset_limit = _checks.whole(where, "reset_limit", self.reset_limit, least=0)
        self.cooldown_range = _checks.cooldown(where, self.cooldown_range)
        _checks.seconds(where, "elastic_timeout", self.elastic_timeout)
        _checks.seconds(where, "timeout_s", self.timeout_s)
        self.nics = _checks.interfaces(where, self.nics)
        return self


class _NodesOfRay:
    """Which nodes Ray has, and for how many ranks of those resources each has room."""

    def __init__(self, resources):
        self.resources = resources

    def find_available_hosts_and_slots(self):
        """{name of a host: slots}, by all that its node has, whether it is free or not."""
        return {name: slots for name, (_, slots) in self.nodes().items() if slots > 0}

    def nodes(self):
        """{name of a host: (Ray's id, slots)} of all nodes that are alive."""
        return {
            host_name(node): (node["NodeID"], self._slots(node["Resources"]))
            for node in ray.nodes()
            if node["Alive"]
        }

    def _slots(self, has):
        return min(
            (int(has.get(name, 0) // amount) for name, amount in self.resources.items() if amount),
            default=0,
        )


class RayHostDiscovery(_NodesOfRay):
    """Which nodes Ray has, and how many ranks each has room for.

    Parameters
    ----------
    use_gpu : bool
    cpus_per_slot, gpus_per_slot : float
        What a rank needs; ``gpus_per_slot`` counts with ``use_gpu`` only.
    """

    def __init__(self, use_gpu=False, cpus_per_slot=1, gpus_per_slot=1):
        self.use_gpu, self.cpus_per_slot, self.gpus_per_slot = use_gpu, cpus_per_slot, gpus_per_slot
        gpus = gpus_per_slot if use_gpu else None
        super().__init__(_checks.resources(type(self).__name__, use_gpu, cpus_per_slot, gpus, "slot"))


def host_name(node):
    """What messages call a node: its address, and the beginning of its id, as a machine may have several."""
    return f"{node['NodeManagerAddress'].replace(':', '-')}-{node['NodeID'][:8]}"


def named_by(host, names):
    """Those of the names that `host_name` gives which a discovery means by ``host``: a name, or an address as with
    Horovod."""
    if host in names:
        return [host]
    return [name for name in names if name.rpartition("-")[0] == host.replace(":", "-")]


class ElasticRayExecutor:
    """Runs a function on ranks that come and go with Ray's nodes; Horovod's class of this name.

    All that a node has counts as its room: nothing else should run there. The function holds its state as in every
    elastic job (docs/elastic.md). Python and this package are at the same path on all nodes.

    Parameters
    ----------
    settings : ElasticSettings
        What `create_settings` made.
    use_gpu : bool
        Whether each rank has ``gpus_per_slot`` GPUs.
    cpus_per_slot, gpus_per_slot : float
        What a rank needs.
    env_vars : dict, optional
        Variables for the ranks' environment.
    override_discovery : bool
        Whether Ray is asked for nodes and slots. Otherwise ``settings.discovery`` is, an object whose
        ``find_available_hosts_and_slots()`` gives {name: slots}, with the names of `RayHostDiscovery`, or the address
        of a node that has it alone. One thread at a time asks it, about once a second.

    Raises
    ------
    ValueError, TypeError
        What is no number of ranks, CPUs, GPUs or seconds, or contradicts another; settings or a discovery that are none.
    """

    @staticmethod
    def create_settings(
        min_num_proc=1,
        max_num_proc=None,
        reset_limit=None,
        elastic_timeout=600,
        timeout_s=30,
        ssh_identity_file=None,
        nics=None,
        min_np=None,
        max_np=None,
        **kwargs,
    ):
        """Settings of an elastic executor.

        Parameters
        ----------
        min_num_proc : int
            Fewest ranks that go on.
        max_num_proc : int, optional
            Most ranks; default: as many as there is room for.
        reset_limit : int, optional
            Changes of the ranks after which the job ends.
        elastic_timeout : float
            Seconds to wait for ``min_num_proc`` ranks, at the start and later.
        timeout_s : float
            Seconds in which agents and ranks must have started.
        ssh_identity_file : str, optional
            Horovod's, without effect: Ray starts the processes.
        nics : collection of str, optional
            Network interfaces that may be used.
        min_np, max_np : int, optional
            Horovod's old names of min_num_proc and max_num_proc.
        cooldown_range : (int, int), optional
            Seconds after which a node whose agent was lost may be used again; default: never.
        num_proc : int, optional
            Ranks to start with; default: as many as there is room for.
        discovery : object, optional
            See ``override_discovery``.
        verbose : int, optional
            1 or more: the job's launcher says what it starts and stops.
        kwargs
            Horovod's other settings are accepted, without effect: ssh_port, extra_mpi_args, tcp_flag, binding_args,
            key, start_timeout, output_filename, run_func_mode, elastic, timestamp_output, prefix_output_with_timestamp.

        Raises
        ------
        ValueError
            A value that is none, or contradicts another.
        TypeError
            A name that Horovod does not know either.
        """
        known = {n: kwargs[n] for n in ("cooldown_range", "num_proc", "discovery", "verbose") if n in kwargs}
        unknown = sorted(kwargs.keys() - known.keys() - set(_WITHOUT_EFFECT))
        if unknown:
            raise TypeError(
                f"create_settings({unknown[0]}=...): there is no such setting; leave it out"
            )
        return ElasticSettings(
            min_num_proc=min_num_proc if min_np is None else min_np,
            max_num_proc=max_num_proc if max_np is None else max_np,
            reset_limit=reset_limit,
            elastic_timeout=elastic_timeout,
            timeout_s=timeout_s,
            nics=nics,
            **known,
        ).checked()

    def __init__(
        self,
        settings,
        use_gpu=False,
        cpus_per_slot=1,
        gpus_per_slot=None,
        env_vars=None,
        override_discovery=True,
    ):
        name = type(self).__name__
        _checks.made_by(settings, ElasticSettings, f"{name}.create_settings").checked()
        if not override_discovery and settings.discovery is None:
            raise ValueError("override_discovery=False needs a discovery in the settings")
        self._settings = settings
        self._ray = _NodesOfRay(_checks.resources(name, use_gpu, cpus_per_slot, gpus_per_slot, "slot"))
        self._discovery = self._ray if override_discovery else _checks.discovery(settings.discovery)
        self._unknown = set()  # names that the discovery gave and no node has
        self._env_vars = {name: str(value) for name, value in (env_vars or {}).items()}

    def add_env_vars(self, variables):
        """More variables for the ranks' environment."""
        self._env_vars.update({name: str(value) for name, value in variables.items()})

    def start(self):
        """Horovod's; the ranks are started by `run`."""
        if not ray.is_initialized():
            raise RuntimeError("this process is not connected to Ray: call ray.init() first")

    def run(self, worker_fn, callbacks=None):
        """``worker_fn()`` on every rank; what the first ``min_num_proc`` ranks of the job's end returned.

        ``callbacks``: functions of this process, each called with every dictionary that a rank gives to
        `ray_logger.log`, from one thread. The first exception of one is raised when the job has ended well.

        Raises
        ------
        RankFailed
            The job ended with an error; it names the rank.
        TimeoutError
            There was not enough room for ``elastic_timeout`` seconds.
        ValueError
            The function cannot be pickled, or has a reference or an actor of Ray's in it; nothing was started.
        """
        self.start()
        with Callbacks(callbacks) as told, tempfile.TemporaryDirectory(prefix="rueda-ray-") as folder:
            logs = told.queue is not None
            work = (logging_to, (folder, worker_fn), {}) if logs else (worker_fn, (), {})
            function = _sending.pickled(worker_fn, work)
            slots = self._wait_for_slots()
            path = [os.path.abspath(entry) if entry else os.getcwd() for entry in sys.path]
            files = {
                "path.json": json.dumps([sys.prefix, path]).encode(),
                "function.pickle": function,
            }
            for name, data in files.items():
                run_task.leave(os.path.join(folder, name), data)
            nodes = _Nodes(os.path.join(folder, "hosts"), self._hosts)
            agents = Agents(folder, files, functools.partial(self._find, nodes), told.queue)
            try:
                command = [sys.executable, os.path.abspath(run_task.__file__), folder]
                options = self._options(agents.path, nodes.path, slots)
                code, says = _run._run_job(
                    [*options, "--", *command], {**os.environ, **self._env_vars}
                )
            finally:
                nodes.close()
                agents.close()
            return _run._results(folder, self._settings.min_num_proc, code, says)

    def _hosts(self):
        """{name of a host: slots}, as the discovery says. What is no node of Ray's is left out, and told once."""
        found = self._discovery.find_available_hosts_and_slots()
        if self._discovery is self._ray:
            return found
        names, hosts = self._ray.nodes().keys(), {}
        for host, slots in found.items():
            meant = named_by(host, names)
            if len(meant) == 1:
                hosts[meant[0]] = slots
            elif host not in self._unknown:
                self._unknown.add(host)
                is_it = f"which {len(meant)} nodes of Ray have" if meant else "which no node of Ray is"
                print(
                    f"rueda.ray: the discovery names {host}, {is_it}: {', '.join(names)}",
                    file=sys.stderr,
                )
        return hosts

    def _find(self, nodes, host):
        node, slots = self._ray.nodes()[host]
        slots = nodes.hosts.get(host, slots)
        return node, {name: amount * slots for name, amount in self._ray.resources.items()}

    def _wait_for_slots(self):
        settings = self._settings
        deadline = time.monotonic() + settings.elastic_timeout
        while True:
            hosts = self._hosts()
            slots = sum(hosts.values())
            if slots >= settings.min_num_proc:
                return slots
            if time.monotonic() >= deadline:
                there = ", ".join(f"{name}: {slots}" for name, slots in hosts.items()) or "none"
                raise TimeoutError(
                    f"there was no room for {settings.min_num_proc} ranks within {settings.elastic_timeout:g} s; "
                    f"asked for: {self._ray.resources} for each; slots present: {there}"
                )
            time.sleep(_LOOK_SECONDS)

    def _options(self, door, hosts, slots):
        settings = self._settings
        most = settings.max_num_proc or math.inf
        shell = [sys.executable, "-I", "-S", os.path.abspath(_shell.__file__), door]
        options = [
            *("-np", str(max(settings.min_num_proc, min(settings.num_proc or slots, most, slots)))),
            *("--min-np", str(settings.min_num_proc)),
            *("--rsh-agent", shlex.join(shell)),
            *("--host-discovery-script", f"cat {shlex.quote(hosts)}"),
            *("--elastic-timeout", f"{settings.elastic_timeout:g}"),
            *("--start-timeout", f"{settings.timeout_s:g}"),
        ]
        if settings.max_num_proc is not None:
            options += ["--max-np", str(settings.max_num_proc)]
        if settings.reset_limit is not None:
            options += ["--reset-limit", str(settings.reset_limit)]
        if settings.cooldown_range is not None:
            options += ["--blacklist-cooldown-range", *map(str, settings.cooldown_range)]
        if settings.nics:
            options += ["--network-interfaces", ",".join(f"={name}" for name in sorted(settings.nics))]
        if settings.verbose:
            options.append("--verbose")
        for name in self._env_vars:
            options += ["-x", name]
        return options


class _Nodes:
    """Keeps a file with the hosts of the moment, which ruedarun's discovery reads. ``hosts``: {name: slots}, the same."""

    def __init__(self, path, ask):
        self.hosts = {}
        self.path, self._ask = path, ask
        self._ended = threading.Event()
        self._write()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def close(self):
        self._ended.set()
        self._thread.join()

    def _keep(self):
        while not self._ended.wait(_LOOK_SECONDS):
            try:
                self._write()
            except Exception as error:  # Ray does not answer: the last answer stays
                print(f"rueda.ray: cannot ask Ray for its nodes: {error}", file=sys.stderr)

    def _write(self):
        hosts = self.hosts = self._ask()
        with open(self.path + ".part", "w") as file:
            file.write("".join(f"{name}:{slots}\n" for name, slots in hosts.items()))
        os.rename(self.path + ".part", self.path)
