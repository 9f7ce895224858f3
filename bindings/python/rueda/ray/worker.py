"""What an actor of `RayExecutor` does."""

import os
import socket

import ray
from ray import cloudpickle
from rueda import _init_options, _meeting, _outcomes
from rueda.compat import horovod
from rueda.ray import ray_logger


class BaseWorker:
    """One rank, in a process of its own. ``world_rank`` is where it was created, until it is told its place."""

    def __init__(self, world_rank=0, world_size=1):
        self.world_rank = world_rank
        self.world_size = world_size
        self.executable = None

    def hostname(self):
        return socket.gethostname()

    def node_id(self):
        return ray.get_runtime_context().get_node_id()

    def get_gpu_ids(self):
        return ray.get_gpu_ids()

    def env_vars(self):
        """The environment of this process."""
        return dict(os.environ)

    def update_env_vars(self, env_vars):
        """Sets variables in it; what is no text becomes one."""
        _set_variables(env_vars)

    def facts(self, interfaces=None):
        """Where this process is."""
        return facts(interfaces)

    def begin(self, place, env_vars, with_horovod=False):
        """From now on this process is that rank: ``init()`` joins the job.

        ``place``: arguments of ``init``. The key is in it, and comes no other way. ``with_horovod``: whether
        ``import horovod`` means rueda, as it does in the driver.
        """
        self.world_rank, self.world_size = place["rank"], place["size"]
        begin(place, env_vars)
        if with_horovod:
            horovod.ask()

    def set_queue(self, queue):
        """Where `ray_logger.log` of this rank puts what it is given; None: nowhere."""
        ray_logger.configure(queue)

    def start_executable(self, executable_cls=None, executable_args=None, executable_kwargs=None):
        """Makes the object that `execute` hands to functions."""
        if executable_cls is not None:
            self.executable = executable_cls(*(executable_args or ()), **(executable_kwargs or {}))

    def execute(self, func):
        """``func(executable)``; None where `start_executable` has made none."""
        return func(self.executable)

    # ``work``: ``(func, args, kwargs)``, as `_sending` sends them.

    def call(self, work):
        """``func(*args, **kwargs)`` as an `Outcome`."""
        return _outcomes.call(*work, cloudpickle)

    def call_executable(self, work):
        """``func(executable)`` as an `Outcome`."""
        return _outcomes.call(work[0], (self.executable,), None, cloudpickle)

    def run(self, work):
        """``func(*args, **kwargs)``; an exception goes to whoever asks Ray for the result."""
        func, args, kwargs = work
        try:
            return func(*args, **kwargs)
        except BaseException:
            _outcomes.leave()  # no rank waits for this one
            raise

    def leave(self):
        """Leaves the job; the next ``init()`` joins it anew."""
        _outcomes.leave()


# For processes that Ray Train has started, too.


def facts(interfaces=None):
    """Where this process is, as plain values."""
    node = ray.get_runtime_context().get_node_id()
    found = _meeting.facts(node, ray.util.get_node_ip_address(), interfaces)
    return {**found, "gpus": [str(gpu) for gpu in ray.get_gpu_ids()]}


def begin(place, env_vars):
    """Makes this process a rank: see `BaseWorker.begin`."""
    _set_variables(env_vars)
    _init_options.give(place)


def end():
    """This process is no rank any more."""
    _outcomes.leave()
    _init_options.give(None)
    for name in _meeting.PLACE:
        os.environ.pop(name, None)


def _set_variables(variables):
    os.environ.update({name: str(value) for name, value in variables.items()})
