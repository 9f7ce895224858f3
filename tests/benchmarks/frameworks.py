"""rueda, torch.distributed with Gloo, and Horovod behind the few calls that the benchmarks make."""

import torch


class Rueda:
    name = "rueda"

    def __init__(self):
        import rueda
        import rueda.torch as hvd

        hvd.init()
        self.hvd, self.rank, self.size = hvd, hvd.rank(), hvd.size()
        self.about = {"rueda": rueda.__version__, "torch": torch.__version__}

    def allreduce(self, tensor, name):
        """As users write it: the result is a tensor of its own."""
        return self.hvd.allreduce(tensor, name=name, op=self.hvd.Sum)

    def allreduce_in_place(self, tensor, name):
        return self.hvd.allreduce_(tensor, name=name, op=self.hvd.Sum)

    def wrap(self, model, optimizer):
        """(model, optimizer) that average gradients while backward runs."""
        return model, self.hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    def leave(self):
        self.hvd.shutdown()


class Horovod(Rueda):
    name = "horovod"

    def __init__(self):
        import horovod
        import horovod.torch as hvd

        hvd.init()
        self.hvd, self.rank, self.size = hvd, hvd.rank(), hvd.size()
        self.about = {"horovod": horovod.__version__, "torch": torch.__version__}


class Gloo:
    name = "gloo"

    def __init__(self):
        import torch.distributed as dist

        dist.init_process_group("gloo")
        self.dist, self.rank, self.size = dist, dist.get_rank(), dist.get_world_size()
        self.about = {"torch": torch.__version__, "config": torch.__config__.show()}

    def allreduce_in_place(self, tensor, name):
        self.dist.all_reduce(tensor)
        return tensor

    allreduce = allreduce_in_place  # it has no other

    def wrap(self, model, optimizer):
        ddp = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        return ddp, optimizer

    def leave(self):
        self.dist.destroy_process_group()


class Alone:
    """No communication: what a step costs by itself."""

    def wrap(self, model, optimizer):
        return model, optimizer


def start(name):
    torch.set_num_threads(1)
    return {"rueda": Rueda, "gloo": Gloo, "horovod": Horovod}[name]()
