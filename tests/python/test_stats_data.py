"""Steps that wait for rueda.data are told by hvd.stats()."""

import time

import numpy as np
import rueda as hvd
from worlds import ranks

import rueda.data


class Slow:
    """Samples that take a while to read."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        time.sleep(0.02)
        return np.array([index], np.float32)


@ranks(2)
def test_what_a_loop_waits_for_is_counted():
    hvd.stats(reset=True)
    before = rueda.data.wait_seconds()
    for _ in rueda.data.DataLoader(Slow(), batch_size=2):
        pass
    waited = rueda.data.wait_seconds() - before
    # The loader's own count is around that of the library, on the same clock.
    assert 0.01 < hvd.stats()["data_wait_seconds"] <= waited
