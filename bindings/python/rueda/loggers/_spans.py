"""Spans of a job for OpenTelemetry: the job, init, one step in many, and what has ended it."""

import contextlib

from rueda.common import basics
from rueda.loggers._needed import needed


class OpenTelemetry:
    """``with rueda.loggers.OpenTelemetry() as trace:`` is the span ``rueda.job`` of this rank.

    Within it ``trace.init()`` is ``hvd.init()`` in a span ``rueda.init``, and ``with trace.step():`` a step, of which one
    in ``every`` has a span ``rueda.step`` with what `rueda.stats` says of it. An exception that leaves the block is
    recorded and makes the job's status an error; of a lost rank with its number, host and cause.

    Parameters
    ----------
    every : int
        Steps for each that has a span.
    tracer_provider : optional
        OpenTelemetry's; its global one without it.
    """

    def __init__(self, every=100, tracer_provider=None):
        if every < 1:
            raise ValueError(f"every is the number of steps for each that has a span, 1 or more, not {every}")
        self._api = needed("opentelemetry.trace", "opentelemetry-api", "rueda.loggers.OpenTelemetry")
        self._tracer = self._api.get_tracer("rueda", tracer_provider=tracer_provider)
        self._every, self._count = every, 0
        self._open = contextlib.ExitStack()
        self._job = None

    def __enter__(self):
        self._job = self._open.enter_context(
            self._tracer.start_as_current_span(
                "rueda.job", record_exception=False, set_status_on_exception=False
            )
        )
        if basics.is_initialized():
            self._say_place()
        return self

    def _say_place(self):
        self._job.set_attributes(
            {
                "rueda.rank": basics.rank(),
                "rueda.size": basics.size(),
                "rueda.local_rank": basics.local_rank(),
                "rueda.transport": basics.stats()["transport"],
            }
        )

    def init(self, *arguments, **more):
        """``hvd.init`` in a span of its own."""
        with self._tracer.start_as_current_span("rueda.init"):
            basics.init(*arguments, **more)
        self._say_place()

    @contextlib.contextmanager
    def step(self):
        """One step; the first has a span, and each that is ``every`` steps later."""
        self._count += 1
        if (self._count - 1) % self._every:
            yield
            return
        before = basics.stats()
        with self._tracer.start_as_current_span("rueda.step") as span:
            yield
            now = basics.stats()
            span.set_attribute("rueda.step", self._count)
            for name in ("bytes", "operations", "waiting_seconds", "late_ranks_seconds", "data_wait_seconds"):
                span.set_attribute(f"rueda.{name}", max(0, now[name] - before[name]))

    def __exit__(self, kind, error, traceback):
        if error is not None and not isinstance(error, SystemExit):
            facts = {
                f"rueda.lost.{name}": getattr(error, name)
                for name in ("rank", "host", "pid", "cause")
                if getattr(error, name, None) not in (None, "")
            }
            self._job.record_exception(error, attributes=facts)
            self._job.set_attributes(facts)
            self._job.set_status(self._api.Status(self._api.StatusCode.ERROR, str(error)))
        return self._open.__exit__(kind, error, traceback)
