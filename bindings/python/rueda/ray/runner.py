"""`RayExecutor`: ranks as actors of Ray, and functions on all of them."""

import functools
import secrets
import time

import ray
from ray import cloudpickle
from rueda import _meeting, _outcomes
from rueda.compat import horovod
from rueda.ray import _checks
from rueda.ray import settings as _settings
from rueda.ray._callbacks import Callbacks
from rueda.ray._collecting import collect
from rueda.ray._placement import Placement
from rueda.ray._sending import send
from rueda.ray.worker import BaseWorker


class RayExecutor:
    """Starts ranks as actors, and runs functions on all of them; Horovod's class of this name.

    Ranks of a node come one after the other. Give either ``num_workers`` or ``num_hosts``.

    Parameters
    ----------
    settings : Settings, optional
        What `create_settings` made; default: 120 s to meet, 100 s to be placed.
    num_workers : int, optional
        How many ranks, wherever there is room, on as few nodes as possible.
    num_hosts : int, optional
        On how many nodes there are ``num_workers_per_host`` ranks each.
    num_workers_per_host : int
    cpus_per_worker : float
    use_gpu : bool
        Whether each rank has ``gpus_per_worker`` GPUs (default 1). It sees those of all ranks on its node.
    gpus_per_worker : float, optional
    use_current_placement_group : bool
        Whether the ranks are in the placement group that the caller is in, if it is in one. Otherwise they are in one
        of their own, which is removed with them.
    min_workers, max_workers : int, optional
        Either makes the job elastic: fewest and most ranks, while Ray's nodes come and go (`ElasticRayExecutor`).
    reset_limit, cooldown_range, elastic_timeout, override_discovery
        Of an elastic job, see there.

    Raises
    ------
    ValueError
        Both counts, or none; a count that is none, or contradicts another.
    TypeError
        Settings that are none.
    """

    create_settings = staticmethod(_settings.create_settings)

    def __init__(
        self,
        settings=None,
        num_workers=None,
        num_hosts=None,
        num_workers_per_host=1,
        cpus_per_worker=1,
        use_gpu=False,
        gpus_per_worker=None,
        use_current_placement_group=True,
        min_workers=None,
        max_workers=None,
        reset_limit=None,
        cooldown_range=None,
        elastic_timeout=600,
        override_discovery=True,
    ):
        name = type(self).__name__
        settings = _checks.made_by(
            _settings.Settings() if settings is None else settings,
            _settings.Settings,
            f"{name}.create_settings",
        ).checked()
        self._resources = _checks.resources(name, use_gpu, cpus_per_worker, gpus_per_worker, "worker")
        self._elastic = self._placement = None
        self._ranks_log = False  # to a queue of callbacks
        self._workers = []  # by rank
        self._facts = []  # by rank
        if min_workers is not None or max_workers is not None:
            if num_hosts is not None:
                raise ValueError("min_workers and max_workers go with num_workers, not with num_hosts")
            names = ("min_workers", "num_workers", "max_workers")
            min_workers, num_workers, max_workers = _checks.limits(name, names, min_workers, num_workers, max_workers)
            self._elastic = _elastic_executor(
                settings,
                (num_workers, 1 if min_workers is None else min_workers, max_workers),
                (use_gpu, cpus_per_worker, gpus_per_worker),
                (reset_limit, cooldown_range, elastic_timeout),
                override_discovery,
            )
            return
        if num_workers is not None and num_hosts is not None:
            raise ValueError(
                "num_workers and num_hosts are both given: give the number of all workers, or hosts and "
                "num_workers_per_host"
            )
        if num_workers is None and num_hosts is None:
            raise ValueError("give num_workers, or num_hosts and num_workers_per_host")
        num_workers = _checks.whole(name, "num_workers", num_workers)
        num_hosts = _checks.whole(name, "num_hosts", num_hosts)
        num_workers_per_host = _checks.whole(name, "num_workers_per_host", num_workers_per_host)
        self._settings = settings
        per_bundle = num_workers_per_host if num_hosts else 1
        bundle = {name: amount * per_bundle for name, amount in self._resources.items()}
        self._wanted = {
            "bundles": [bundle] * (num_hosts or num_workers),
            "strategy": "STRICT_SPREAD" if num_hosts else "PACK",
            "per_bundle": per_bundle,
            "resources": self._resources,
            "use_current": use_current_placement_group,
        }
        self.num_workers = (num_hosts or num_workers) * per_bundle

    def start(
        self, executable_cls=None, executable_args=None, executable_kwargs=None, extra_env_vars=None
    ):
        """Starts the ranks. When it fails, or is interrupted, nothing of it is left.

        Parameters
        ----------
        executable_cls : type, optional
            Of an object that each rank makes, for `execute`, from ``executable_args`` and ``executable_kwargs``.
        extra_env_vars : dict, optional
            Variables for the ranks' environment, set before that.

        Raises
        ------
        TimeoutError
            They have found no place in time; it lists what was asked for and what there is.
        ValueError
            Already started; or the current placement group is too small.
        """
        if self._elastic is not None:
            if executable_cls is not None:
                raise ValueError(
                    "executable_cls: ranks of an elastic job come and go, so they keep no object; make it in the function"
                )
            self._elastic.add_env_vars(extra_env_vars or {})
            self._elastic.start()
            return
        if self._workers:
            raise ValueError("the executor is started already: shutdown() ends its workers")
        try:
            self._start_workers(extra_env_vars or {})
            made = [
                worker.start_executable.remote(executable_cls, executable_args, executable_kwargs)
                for worker in self._workers
            ]
            ray.get(made)
        except BaseException:
            self.shutdown()
            raise

    def _start_workers(self, env_vars):
        seconds = self._settings.placement_group_timeout_s
        deadline = time.monotonic() + seconds
        self._placement = Placement(**self._wanted)
        self._placement.reserve(deadline, seconds)
        make = ray.remote(BaseWorker)
        for index in range(self.num_workers):
            options = self._placement.options(index)
            self._workers.append(make.options(**options).remote(index, self.num_workers))
        asked = [worker.facts.remote(self._settings.nics) for worker in self._workers]
        there, missing = ray.wait(
            asked, num_returns=len(asked), timeout=max(0, deadline - time.monotonic())
        )
        ray.get(there)  # an error of one of them comes before that of those that are missing
        if missing:
            raise self._placement.too_late(seconds, len(there))
        facts = ray.get(asked)
        order = _meeting.dense(facts)
        self._workers = [self._workers[index] for index in order]
        self._facts = [facts[index] for index in order]
        places = _meeting.places(
            f"ray-{secrets.token_hex(16)}",
            self._facts,
            _meeting.new_key(),
            by_port=bool(self._settings.nics),
        )
        begun = [
            worker.begin.remote(
                place, {**self._own_variables(facts), **env_vars, **told}, horovod.is_asked_for()
            )
            for worker, place, facts, told in zip(
                self._workers, places, self._facts, _meeting.variables(self._facts)
            )
        ]
        ray.get(begun)

    def _own_variables(self, facts):
        variables = {}
        if self._settings.timeout_s is not None:
            variables["RUEDA_START_TIMEOUT"] = self._settings.timeout_s
        if self._settings.nics:
            variables["RUEDA_TCP_ADDRESS"] = facts["address"]
        if "GPU" in self._resources:
            here = [other["gpus"] for other in self._facts if other["node"] == facts["node"]]
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(
                dict.fromkeys(gpu for gpus in here for gpu in gpus)
            )
        return variables

    def run(self, fn, args=None, kwargs=None, callbacks=None):
        """``fn(*args, **kwargs)`` on all ranks; what they returned, in the order of ranks.

        ``callbacks``: functions of this process, each called with every dictionary that a rank gives to
        `ray_logger.log`, from one thread. The first exception of one is raised when the ranks have ended well.

        After a failure ranks whose function has ended are kept, for the next call. If a rank died, or some have
        not ended 5 s later, all are shut down. Ctrl-C shuts down, too.

        Raises
        ------
        RankFailed
            Names the rank, node, pid and cause.
        ValueError
            The function or its arguments cannot be pickled; no rank has begun, and all are kept.
        """
        if self._elastic is not None:
            whole = functools.partial(fn, *(args or ()), **(kwargs or {}))
            return self._elastic.run(whole, callbacks)
        return self._call("call", fn, args, kwargs, callbacks=callbacks)

    def execute(self, fn, callbacks=None):
        """``fn(executable)`` on all ranks, with the objects that `start` made; otherwise as `run`."""
        return self._call("call_executable", fn, callbacks=callbacks)

    def run_remote(self, fn, args=None, kwargs=None, callbacks=None):
        """Begins ``fn(*args, **kwargs)`` on all ranks and returns Ray's references, in the order of ranks.

        What `ray.get` raises is Ray's: the exception of a rank, or that its actor died. ``callbacks`` as in `run`,
        but for their exceptions, which are lost.
        """
        self._require_workers()
        work = send(fn, args, kwargs)
        told = Callbacks(callbacks).begin()
        self._log_to(told.queue)
        references = [worker.run.remote(work) for worker in self._workers]
        told.end_after(references)
        return references

    def execute_single(self, fn):
        """``fn(executable)`` on rank 0 alone; what it returned. Otherwise as `run`."""
        return self._call("call_executable", fn, ranks=1)[0]

    def shutdown(self):
        """Ends the ranks, and gives back their places. Twice is fine; `start` may be called again."""
        workers, self._workers, self._facts = self._workers, [], []
        placement, self._placement = self._placement, None
        try:
            for worker in workers:
                ray.kill(worker)
        finally:
            if placement is not None:
                placement.release()

    def _require_workers(self):
        if self._elastic is not None:
            raise ValueError("the ranks of an elastic job come and go: use run()")
        if not self._workers:
            raise ValueError("the executor is not started: call start() first")

    def _log_to(self, queue):
        if queue is not None or self._ranks_log:
            ray.get([worker.set_queue.remote(queue) for worker in self._workers])
        self._ranks_log = queue is not None

    def _call(self, method, fn, args=(), kwargs=None, ranks=None, callbacks=None):
        with Callbacks(callbacks) as told:
            return self._call_and_wait(method, (fn, args, kwargs), ranks, told.queue)

    def _call_and_wait(self, method, function, ranks, queue):
        """What this method of the first so many workers returned. Nothing is left of what is interrupted."""
        self._require_workers()
        nodes = [f"{facts['host']} {facts['node']}" for facts in self._facts]
        pids = [facts["pid"] for facts in self._facts]
        has_begun = False
        try:
            work = send(*function)
            self._log_to(queue)
            has_begun = True
            begun = [getattr(worker, method).remote(work) for worker in self._workers[:ranks]]
            outcomes, order = collect(begun)
            if any(outcome.kind in ("dead", "missing") for outcome in outcomes):
                self.shutdown()
            elif any(outcome.kind != "result" for outcome in outcomes):
                ray.get([worker.leave.remote() for worker in self._workers])
        except BaseException as error:  # Ctrl-C: the workers are in the middle of it
            if has_begun or not isinstance(error, Exception):
                self.shutdown()
            raise
        return _outcomes.results(outcomes, order, nodes, pids, cloudpickle)


def _elastic_executor(settings, workers, needs, limits, override_discovery):
    from rueda.ray.elastic import ElasticRayExecutor

    num_workers, min_workers, max_workers = workers
    reset_limit, cooldown_range, elastic_timeout = limits
    elastic = ElasticRayExecutor.create_settings(
        min_workers,
        max_workers,
        reset_limit,
        elastic_timeout,
        120 if settings.timeout_s is None else settings.timeout_s,
        nics=settings.nics,
        cooldown_range=cooldown_range,
        num_proc=num_workers,
        discovery=settings.discovery,
        verbose=settings.verbose > 1,  # 1 is MiniSettings' default
    )
    use_gpu, cpus, gpus = needs
    return ElasticRayExecutor(elastic, use_gpu, cpus, gpus, override_discovery=override_discovery)
