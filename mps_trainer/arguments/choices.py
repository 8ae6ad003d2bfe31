"""Values that an argument chooses from.

Each is a `str`, so it compares equal to transformers' enum of the same name without that enum, which needs torch,
being imported.
"""

from __future__ import annotations

from enum import Enum


class Choice(str, Enum):
    """A named value that is its own string."""

    def __str__(self) -> str:
        return str(self.value)


class IntervalStrategy(Choice):
    NO = "no"
    STEPS = "steps"
    EPOCH = "epoch"


class SaveStrategy(Choice):
    NO = "no"
    STEPS = "steps"
    EPOCH = "epoch"
    BEST = "best"


class SchedulerType(Choice):
    LINEAR = "linear"
    COSINE = "cosine"
    COSINE_WITH_RESTARTS = "cosine_with_restarts"
    POLYNOMIAL = "polynomial"
    CONSTANT = "constant"
    CONSTANT_WITH_WARMUP = "constant_with_warmup"
    INVERSE_SQRT = "inverse_sqrt"
    REDUCE_ON_PLATEAU = "reduce_lr_on_plateau"
    COSINE_WITH_MIN_LR = "cosine_with_min_lr"
    COSINE_WARMUP_WITH_MIN_LR = "cosine_warmup_with_min_lr"
    WARMUP_STABLE_DECAY = "warmup_stable_decay"


class OptimizerNames(Choice):
    ADAMW_TORCH = "adamw_torch"
    ADAMW_TORCH_FUSED = "adamw_torch_fused"
    SGD = "sgd"


class HubStrategy(Choice):
    END = "end"
    EVERY_SAVE = "every_save"
    CHECKPOINT = "checkpoint"
    ALL_CHECKPOINTS = "all_checkpoints"


class DebugOption(Choice):
    UNDERFLOW_OVERFLOW = "underflow_overflow"
    TPU_METRICS_DEBUG = "tpu_metrics_debug"


class SamplingStrategy(Choice):
    RANDOM = "random"
    SEQUENTIAL = "sequential"


class ParallelMode(Enum):
    """How the work is spread; transformers' values."""

    NOT_PARALLEL = "not_parallel"
    NOT_DISTRIBUTED = "not_distributed"
    DISTRIBUTED = "distributed"
