"""Not there: importing it says why."""

from horovod._absent import refuse

refuse(__name__, "this version of rueda does not start jobs on Spark; start the script with ruedarun")
