"""Data for training jobs: dealt out to the ranks, shuffled, read ahead, and resumed at the very sample.

>>> import rueda as hvd, rueda.data
>>> hvd.init()
>>> loader = rueda.data.DataLoader(rueda.data.Arrays(images, labels), batch_size=32, seed=1)
>>> for epoch in range(loader.epoch, 10):
...     for x, y in loader:
...         train(x, y)
...         save(loader.state_dict())

`_order` says in which order an epoch's samples come, `_deal` whose they are: both are pure, and the same on all ranks. Sources
(`_arrays`, `_files`, `_parquet`, `_webdataset`) read them; what has to be found out about files is found out once (`_listing`).
`_batches` makes batches, in memory that the host's ranks share (`_memory`); `_prefetch` ahead of time, in threads or in processes
(`_process`), `_reading` puts that together. `_loader` is what users call, `_convert` and `_keras` what frameworks get, `_waits` how long steps waited. `_balance` lets slow ranks have fewer
samples.

Importing this imports no framework and no library of formats.
"""

from rueda.data._arrays import Arrays
from rueda.data._balance import balance
from rueda.data._errors import DataError
from rueda.data._files import Files
from rueda.data._loader import DataLoader
from rueda.data._parquet import Parquet
from rueda.data._waits import index_seconds, wait_seconds
from rueda.data._webdataset import WebDataset

__all__ = [
    "Arrays",
    "DataError",
    "DataLoader",
    "Files",
    "Parquet",
    "WebDataset",
    "balance",
    "index_seconds",
    "wait_seconds",
]
