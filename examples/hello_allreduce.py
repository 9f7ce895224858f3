"""The smallest program: every rank gives its number, every rank learns the sum.

    ruedarun -np 2 python examples/hello_allreduce.py
"""

import numpy as np
import rueda as hvd

hvd.init()
total = hvd.allreduce(np.array([float(hvd.rank())]), op=hvd.Sum, name="hello")
print(f"rank {hvd.rank()} of {hvd.size()}: the ranks add up to {total[0]:.0f}")
hvd.shutdown()
