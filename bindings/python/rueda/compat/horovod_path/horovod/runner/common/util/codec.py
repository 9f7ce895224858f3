"""Horovod's ``horovod.runner.common.util.codec``, by rueda: objects as text. Unpickles: only for text of one's own."""

import base64


def dumps_base64(obj, to_ascii=True):
    import cloudpickle

    encoded = base64.b64encode(cloudpickle.dumps(obj))
    return encoded.decode("ascii") if to_ascii else encoded


def loads_base64(encoded):
    import cloudpickle

    return cloudpickle.loads(base64.b64decode(encoded))
