"""DeepSpeed's configuration, checked. Pure: from a dict to a `Config`, or an error that names the key.

Every key is obeyed, listed in `Config.ignored`, or refused with what to do (`_keys`).
"""

import difflib
import json
import typing

from rueda.torch.deepspeed._keys import IGNORED, NEUTRAL, REFUSED

_REQUIRED = object()


class ConfigError(ValueError):
    """A key of the configuration that cannot be obeyed; it is named with its path."""


class Fp16(typing.NamedTuple):
    auto_cast: bool
    loss_scale: float  # 0: dynamic
    initial_scale_power: int
    loss_scale_window: int
    hysteresis: int
    consecutive_hysteresis: bool
    min_loss_scale: float


class Config(typing.NamedTuple):
    train_batch_size: int
    micro_batch_size: int
    accumulation_steps: int
    optimizer: typing.Optional[tuple]  # (type, params)
    scheduler: typing.Optional[tuple]
    gradient_clipping: float  # 0: none
    predivide: float
    averages: bool  # False: gradients are summed
    sparse_gradients: bool
    communication: typing.Optional[str]  # what gradients travel as; None: their own type
    fp16: typing.Optional[Fp16]
    bf16: bool
    check_overflow: bool
    stage: int
    offload_optimizer: typing.Optional[str]  # "cpu" or a folder
    offload_param: typing.Optional[str]
    steps_per_print: typing.Optional[int]
    times: bool  # wall_clock_breakdown
    drop_last: bool
    tag_validation: str
    ignored: dict  # path: why


def read(config):
    """A dict from a dict or the path of a JSON file, in which no key may come twice."""
    if isinstance(config, dict):
        return config
    with open(config) as file:
        try:
            found = json.load(file, object_pairs_hook=_no_key_twice)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{config} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{config} holds no JSON object")
    return found


def _no_key_twice(pairs):
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ConfigError(f"{next(n for n in names if names.count(n) > 1)} stands there twice")
    return found


def parse(config, size):
    """The `Config` of a dict, for so many ranks."""
    keys = _Keys(config)
    batches = _batches(keys, size)
    fp16, bf16 = _fp16(keys), _bf16(keys)
    if fp16 and bf16:
        raise ConfigError("fp16.enabled and bf16.enabled are both true; choose one")
    stage = keys.whole("zero_optimization.stage", 0, least=0, most=3)
    prescales = keys.switch("prescale_gradients", False)
    predivide = keys.number("gradient_predivide_factor", 1.0, above=0)
    averages = keys.choice("gradient_allreduce_op", "mean", ("mean", "sum")) == "mean"
    if not averages and (prescales or predivide != 1):
        raise ConfigError("gradient_allreduce_op: 'sum' excludes prescale_gradients and gradient_predivide_factor")
    communication = keys.choice("communication_data_type", None, (None, "fp32", "fp16", "bf16"))
    communication = None if communication == "fp32" else communication
    if communication and stage:
        raise ConfigError(
            f"communication_data_type: {communication!r} is for stage 0; shards travel in their own type, so leave it out"
        )
    if not keys.switch("zero_optimization.ignore_unused_parameters", True):
        raise ConfigError("zero_optimization.ignore_unused_parameters: false: unused parameters count as zero here; leave it out")
    if keys.whole("zero_optimization.zero_hpz_partition_size", 1, least=0) > 1:
        raise ConfigError(f"zero_optimization.zero_hpz_partition_size: {_QUANTIZED_OR_SPLIT}")
    result = Config(
        *batches,
        optimizer=_part(keys, "optimizer"),
        scheduler=_part(keys, "scheduler"),
        gradient_clipping=keys.number("gradient_clipping", 0.0, least=0),
        predivide=float(size) if prescales else predivide,
        averages=averages,
        sparse_gradients=keys.switch("sparse_gradients", False),
        communication=communication,
        fp16=fp16,
        bf16=bf16 is not None,
        check_overflow=bool(fp16) or bool(bf16 and bf16["check_grad_overflow"]),
        stage=stage,
        offload_optimizer=_offload(keys, "optimizer", stage, (1, 2, 3)),
        offload_param=_offload(keys, "param", stage, (3,)),
        steps_per_print=keys.whole("steps_per_print", None, least=1),
        times=keys.switch("wall_clock_breakdown", False),
        drop_last=keys.switch("dataloader_drop_last", False),
        tag_validation=keys.choice("checkpoint.tag_validation", "Warn", ("Ignore", "Warn", "Fail"), any_case=True),
        ignored={},
    )
    return result._replace(ignored=keys.rest())


_QUANTIZED_OR_SPLIT = "rueda has one group of ranks for parameters; leave it out"


class _Keys:
    """A configuration by paths; notes which keys have been asked for."""

    def __init__(self, config):
        if not isinstance(config, dict):
            raise ConfigError(f"the configuration is a {type(config).__name__}; a dict or the path of a JSON file is expected")
        self.config, self.asked = config, set()

    def get(self, path, default=None):
        self.asked.add(path)
        value, seen = self.config, []
        for name in path.split("."):
            if value is None:
                return default
            if not isinstance(value, dict):
                raise ConfigError(f"{'.'.join(seen)}: {value!r} is not a section {{...}}")
            if name not in value:
                return default
            value = value[name]
            seen.append(name)
        if value == "auto":
            raise ConfigError(_auto(path))
        return value

    def switch(self, path, default):
        value = self.get(path, default)
        if not isinstance(value, bool):
            raise ConfigError(f"{path}: {value!r} is neither true nor false")
        return value

    def number(self, path, default, least=None, above=None):
        value = self.get(path, default)
        if value is default:
            return value
        good = isinstance(value, (int, float)) and not isinstance(value, bool)
        good = good and value == value and abs(value) != float("inf")
        if not good or (least is not None and value < least) or (above is not None and value <= above):
            bound = f", {least} or more" if least is not None else f", more than {above}" if above is not None else ""
            raise ConfigError(f"{path}: {value!r} is not a number{bound}")
        return value

    def whole(self, path, default, least=None, most=None):
        value = self.number(path, default)
        if value is default:
            return value
        if value != int(value) or (least is not None and value < least) or (most is not None and value > most):
            bound = f" from {least} to {most}" if most is not None else f", {least} or more"
            raise ConfigError(f"{path}: {value!r} is not a whole number{bound}")
        return int(value)

    def choice(self, path, default, words, any_case=False):
        value = self.get(path, default)
        for word in words:
            if value == word or (any_case and str(value).lower() == str(word).lower()):
                return word
        raise ConfigError(f"{path}: {value!r}; there are {', '.join(map(json.dumps, words))}")

    def rest(self):
        """Keys that were not asked for and may stand there, with why; ConfigError for others."""
        found = {}
        self._look_at(self.config, "", found)
        return found

    def _look_at(self, section, prefix, found):
        for name, value in section.items():
            path = f"{prefix}{name}"
            if path in self.asked or path in IGNORED:
                if path in IGNORED:
                    if value == "auto":
                        raise ConfigError(_auto(path))
                    found[path] = IGNORED[path]
                continue
            if path in REFUSED:
                if _says_nothing(path, value):
                    continue
                raise ConfigError(f"{path}: not obeyed by rueda: {REFUSED[path]}")
            inside = [known for known in (*self.asked, *IGNORED, *REFUSED) if known.startswith(path + ".")]
            if not inside:
                raise ConfigError(f"{path}: there is no such key{self._meant(path)}")
            if value is None:
                continue
            if not isinstance(value, dict):
                raise ConfigError(f"{path}: {value!r} is not a section {{...}}")
            self._look_at(value, path + ".", found)

    def _meant(self, path):
        near = difflib.get_close_matches(path, [*self.asked, *IGNORED, *REFUSED], 1, 0.75)
        return f"; did you mean {near[0]}?" if near else ""


def _says_nothing(path, value):
    if isinstance(value, dict):
        return value.get("enabled", _REQUIRED) is False or value in NEUTRAL.get(path, ())
    return value is None or value is False or value in NEUTRAL.get(path, ())


_INSTEAD = {
    "train_batch_size": "samples of all ranks in a step",
    "train_micro_batch_size_per_gpu": "samples of a rank in a forward",
    "gradient_accumulation_steps": "backward passes in a step",
    "gradient_clipping": "the largest norm, 1.0 in transformers",
    "optimizer.params": "its numbers, as lr, betas, eps and weight_decay",
    "scheduler.params": "its numbers, as warmup_num_steps and total_num_steps",
    "fp16.enabled": "true or false",
    "bf16.enabled": "true or false",
}


def _auto(path):
    section = path.rsplit(".", 1)[0]
    instead = _INSTEAD.get(path) or _INSTEAD.get(section)
    if instead is None:
        instead = "nothing: leave it out" if path in IGNORED else "a value"
    return f"{path}: 'auto' is filled in by transformers, which is not here; write {instead}"


def _batches(keys, size):
    """(train batch, micro batch, accumulation steps) by DeepSpeed's rules."""
    names = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
    train, micro, steps = (keys.whole(name, None, least=1) for name in names)
    if train is None and micro is None:
        raise ConfigError("train_batch_size or train_micro_batch_size_per_gpu is needed")
    if train is None:
        steps = steps or 1
        train = micro * steps * size
    elif micro is None:
        steps = steps or 1
        micro = train // (size * steps)
    elif steps is None:
        steps = train // (micro * size)
    if train != micro * steps * size or micro == 0 or steps == 0:
        raise ConfigError(
            f"train_batch_size: {train} is not train_micro_batch_size_per_gpu * gradient_accumulation_steps * number of ranks: "
            f"{micro} * {steps} * {size}"
        )
    return train, micro, steps


def _part(keys, name):
    """(type, params) of the optimizer or scheduler."""
    kind = keys.get(f"{name}.type")
    params = keys.get(f"{name}.params") or {}
    keys.get(f"{name}.legacy_fusion")
    if not keys.get(name):
        return None
    if not isinstance(kind, str):
        raise ConfigError(f"{name}.type: {kind!r} is not a name")
    if not isinstance(params, dict):
        raise ConfigError(f"{name}.params: {params!r} is not a section {{...}}")
    for key, value in params.items():
        if value == "auto":
            raise ConfigError(_auto(f"{name}.params.{key}"))
    keys.asked.discard(name)  # what else is in it is looked at
    return kind, params


def _fp16(keys):
    values = Fp16(
        keys.switch("fp16.auto_cast", False),
        keys.number("fp16.loss_scale", 0, least=0),
        keys.whole("fp16.initial_scale_power", 16, least=0),
        keys.whole("fp16.loss_scale_window", 1000, least=1),
        keys.whole("fp16.hysteresis", 2, least=1),
        keys.switch("fp16.consecutive_hysteresis", False),
        keys.number("fp16.min_loss_scale", 1, above=0),
    )
    return values if keys.switch("fp16.enabled", False) else None


def _bf16(keys):
    found = None
    for name in ("bf16", "bfloat16"):  # the older one
        check = keys.switch(f"{name}.check_grad_overflow", True)
        if keys.switch(f"{name}.enabled", False):
            found = {"check_grad_overflow": check}
    return found


def _offload(keys, what, stage, stages):
    section = f"zero_optimization.offload_{what}"
    device = keys.choice(f"{section}.device", None, (None, "none", "cpu", "nvme"))
    path = keys.get(f"{section}.nvme_path")
    if what == "optimizer" and keys.number(f"{section}.ratio", 1.0) != 1:
        raise ConfigError(f"{section}.ratio: rueda offloads all of the state or nothing; leave it out")
    if device in (None, "none"):
        return None
    if stage not in stages:
        raise ConfigError(f"{section}.device: {device!r} needs zero_optimization.stage {' or '.join(map(str, stages))}")
    if device == "cpu":
        return "cpu"
    if not isinstance(path, str) or not path:
        raise ConfigError(f"{section}.nvme_path: a folder is needed for device 'nvme'")
    return path
