"""Not there: importing it says why."""

from horovod._absent import refuse

refuse(__name__, "rueda has no services that unpickle what they are sent; start jobs with ruedarun or rueda.run")
