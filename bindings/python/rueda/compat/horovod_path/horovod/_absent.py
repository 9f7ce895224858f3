"""Why a part of Horovod cannot be imported."""


def refuse(module, why):
    raise ImportError(
        f"{module} is not there: {why} (rueda serves PyTorch, horovod.torch, and NumPy, rueda)",
        name=module,
    )
