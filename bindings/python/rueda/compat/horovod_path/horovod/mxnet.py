"""Not there: importing it says why."""

from horovod._absent import refuse

refuse(__name__, "MXNet is retired and rueda has no surface for it")
