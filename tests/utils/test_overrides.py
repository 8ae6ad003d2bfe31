"""The methods that a subclass replaced are known in one place, and the run says what that switches off."""

from mps_trainer.utils.overrides import Overrides


class Base:
    def step(self):
        pass

    save = step


def test_a_method_of_a_subclass_or_an_instance_counts():
    base, slow = Base(), type("Slow", (Base,), {"step": print})()
    base.save = print
    for instance, name, other in ((base, "save", "step"), (slow, "step", "save")):
        overrides = Overrides.of(instance, {"step": Base.step, "save": Base.save})
        assert overrides.has(name, other)
        assert not overrides.has(other)
