"""Not there: importing it says why."""

from horovod._absent import refuse

refuse(__name__, "this version of rueda has no Keras surface")
