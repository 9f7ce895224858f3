"""Training by a DeepSpeed configuration, with DeepSpeed's engine, on rueda (docs/deepspeed.md).

    _config, _keys  what a configuration says; keys that are not obeyed (pure)
    _schedules      learning rates
    _loss_scale     fp16
    _precision      a model that computes in 16 bits
    _optimizers     from a configuration to a `DistributedOptimizer`
    _engine         a step; _times, _checkpoints
    _initialize     all of it together
"""

from rueda.torch.deepspeed._config import ConfigError
from rueda.torch.deepspeed._engine import Engine
from rueda.torch.deepspeed._initialize import initialize

__all__ = ["ConfigError", "Engine", "initialize"]
