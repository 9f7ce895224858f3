"""Horovod's ``horovod.common``, by rueda."""
