"""Horovod's ``horovod.runner.elastic``, by rueda: what ranks use of it."""
