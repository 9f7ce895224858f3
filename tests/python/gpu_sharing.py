"""Ranks that share a GPU, for checks on a machine that has one only."""

import os


def prepare():
    """Before NCCL starts: where gpu_check says that ranks share a GPU, each is a host of its own for NCCL, which takes several
    processes of one host on one GPU for a mistake. From 2.30 on NCCL has a switch for it (NCCL_MULTI_RANK_GPU_ENABLE)."""
    if os.environ.get("RUEDA_CHECK_SHARES_GPU") != "1":
        return
    import torch

    if torch.cuda.nccl.version() < (2, 30):
        os.environ["NCCL_HOSTID"] = f"rank-{os.environ['RUEDA_RANK']}"
