"""Horovod's ``horovod.runner.common.util.secret``, by rueda: keys and digests of messages."""

import hashlib
import hmac
import os

HOROVOD_SECRET_KEY = "_HOROVOD_SECRET_KEY"
DIGEST_LENGTH = 32


def make_secret_key():
    return os.urandom(DIGEST_LENGTH)


def compute_digest(key, message):
    return hmac.new(key, message, hashlib.sha256).digest()


def check_digest(key, message, digest):
    return hmac.compare_digest(digest, compute_digest(key, message))
