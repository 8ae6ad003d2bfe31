"""The methods that a subclass replaced are known in one place, and the run says what that switches off."""

import logging

from mps_trainer import Trainer
from mps_trainer.utils.overrides import Overrides, methods_of


class Base:
    def step(self):
        pass

    save = step


def test_a_method_of_a_subclass_or_an_instance_counts():
    base, slow = Base(), type("Slow", (Base,), {"step": print})()
    base.save = print
    for instance, name, other in ((base, "save", "step"), (slow, "step", "save")):
        overrides = Overrides.of(instance, methods_of(Base))
        assert overrides.has(name, other)
        assert not overrides.has(other)


def test_a_run_logs_what_an_override_switches_off(make_trainer, caplog):
    class Clipping(Trainer):
        def _clip_grad_norm(self, model):
            return super()._clip_grad_norm(model)

    with caplog.at_level(logging.INFO, "transformers.trainer"):
        make_trainer({"kind": Clipping}, max_steps=1).train()
    off = [record.getMessage() for record in caplog.records if "Off: " in record.getMessage()]
    assert off == ["  Off: clipping within the optimizer's step, because _clip_grad_norm is overridden"]
