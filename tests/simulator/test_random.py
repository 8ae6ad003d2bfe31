"""Random numbers come from a generator of the device's own."""

import pytest
import torch


def with_generator(name, *args):
    return lambda **options: getattr(torch, name)(*args, device="mps", **options)


def of_tensor(name, values, *args):
    return lambda **options: getattr(torch, name)(values.to("mps"), *args, **options)


DRAWS = [
    with_generator("rand", 5),
    with_generator("randn", 5),
    with_generator("randint", 0, 1000, (5,)),
    with_generator("randperm", 50),
    lambda **options: torch.empty(5, device="mps").uniform_(**options),
    lambda **options: torch.empty(5, device="mps").exponential_(**options),
    of_tensor("bernoulli", torch.full((40,), 0.5)),
    of_tensor("multinomial", torch.ones(50), 5),
    of_tensor("normal", torch.zeros(5), 1.0),
]


def recurrent() -> torch.Tensor:
    lstm = torch.nn.LSTM(3, 4, num_layers=2, dropout=0.5, device="mps")
    for parameter in lstm.parameters():
        torch.nn.init.constant_(parameter, 0.1)
    result = lstm(torch.ones(5, 2, 3, device="mps"))[0]
    result.sum().backward()
    return torch.cat([result.flatten(), lstm.weight_ih_l0.grad.flatten()])


DROPS = [
    recurrent,
    lambda: torch.nn.functional.dropout(torch.ones(99, device="mps")),
    lambda: torch.native_dropout(torch.ones(99, device="mps"), 0.5, True)[0],
    lambda: torch.feature_dropout(torch.ones(2, 99, 1, device="mps"), 0.5, True),
]


@pytest.mark.parametrize("draw", [*DRAWS, *DROPS])
def test_numbers_follow_the_seed_of_the_device_and_leave_the_generator_of_the_cpu_alone(mps, draw):
    before = torch.get_rng_state()
    torch.mps.manual_seed(5)
    first, second = draw(), draw()
    torch.mps.manual_seed(5)
    torch.rand(3)
    torch.set_rng_state(before)
    assert torch.equal(draw(), first)
    assert not torch.equal(second, first)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_state_is_kept_restored_forked_and_seeded(mps):
    torch.manual_seed(7)
    assert torch.mps._get_default_mps_generator().initial_seed() == 7
    state = torch.mps.get_rng_state()
    assert state.device.type == "cpu"
    first = torch.randn(3, device="mps")
    for restore in (lambda: torch.manual_seed(7), lambda: torch.mps.set_rng_state(state)):
        restore()
        with torch.random.fork_rng(device_type="mps"):
            torch.rand(7, device="mps")
        assert torch.equal(torch.randn(3, device="mps"), first)


@pytest.mark.parametrize("draw", DRAWS)
def test_generator_of_ones_own_is_used(mps, draw):
    generator = torch.Generator("mps").manual_seed(3)
    first = draw(generator=generator)
    assert torch.equal(draw(generator=torch.Generator("mps").manual_seed(3)), first)
    assert not torch.equal(draw(generator=generator), first)
