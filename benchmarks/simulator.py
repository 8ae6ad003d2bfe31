"""Measures how much slower a training step is on the simulated mps device than on the CPU.

Both train the same BERT, in alternation, in one process; the figure is the ratio of the median times of a step.

    python benchmarks/simulator.py [--layers 6] [--hidden 384] [--batch 16] [--length 128] [--rounds 5]
"""

from __future__ import annotations

import argparse
import statistics
import time

from mps_trainer.simulator import simulated_mps  # before torch, for its build for CUDA

# isort: split
import torch
from transformers import BertConfig, BertForSequenceClassification

STEPS = 4  # of each round that are timed, after one that warms up


def main() -> None:
    arguments = parse()
    times: dict[str, list[float]] = {"cpu": [], "mps": []}
    losses: dict[str, float] = {}
    for round_ in range(arguments.rounds):
        # Who goes first changes, so that a machine that slows down does not favour one.
        for name in sorted(times, reverse=round_ % 2 == 1):
            losses[name] = train(name, arguments, times[name])
    milliseconds = {name: 1000 * statistics.median(seconds) for name, seconds in times.items()}
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {arguments}")
    for name, value in milliseconds.items():
        spread = [1000 * end for end in (min(times[name]), max(times[name]))]
        print(f"{name}: {value:.1f} ms a step (from {spread[0]:.1f} to {spread[1]:.1f}), last loss {losses[name]:.6f}")
    print(f"ratio: {milliseconds['mps'] / milliseconds['cpu']:.2f}")


def train(name: str, arguments: argparse.Namespace, times: list[float]) -> float:
    """One round on the device called `name`; adds the seconds of each step to `times` and returns the last loss."""
    if name == "mps":
        with simulated_mps(same_draws_as_cpu=True):
            return steps(name, arguments, times)
    return steps(name, arguments, times)


def steps(name: str, arguments: argparse.Namespace, times: list[float]) -> float:
    torch.manual_seed(0)
    config = BertConfig(
        num_hidden_layers=arguments.layers,
        hidden_size=arguments.hidden,
        num_attention_heads=arguments.hidden // 32,
        intermediate_size=4 * arguments.hidden,
    )
    model = BertForSequenceClassification(config).to(name).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    shape = (arguments.batch, arguments.length)
    loss = torch.zeros(())
    for step in range(1 + STEPS):
        tokens = torch.randint(config.vocab_size, shape).to(name)
        labels = torch.randint(2, shape[:1]).to(name)
        start = time.perf_counter()
        loss = model(input_ids=tokens, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step > 0:
            times.append(time.perf_counter() - start)
    return loss.item()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("layers", 6), ("hidden", 384), ("batch", 16), ("length", 128), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


if __name__ == "__main__":
    main()
