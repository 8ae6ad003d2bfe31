"""The bar and the lines of a run."""

import re

from transformers import PrinterCallback
from transformers.trainer_callback import ProgressCallback as TransformersProgressCallback

from mps_trainer.callbacks import ProgressCallback


def test_a_log_is_one_line_with_loss_rate_norm_and_throughput(make_trainer, capfd):
    make_trainer(disable_tqdm=False, max_steps=4, logging_steps=2).train()
    lines = [line for line in capfd.readouterr().out.splitlines() if line.startswith("step")]
    number = r"[\d.e+-]+"
    pattern = rf"step 2/4 \| epoch 0\.40 \| loss {number} \| lr {number} \| grad norm {number} \| {number} samples/s"
    assert re.fullmatch(pattern, lines[0])
    assert len(lines) == 3  # two logs and the summary


def test_the_first_lines_say_device_size_and_steps(make_trainer, capfd):
    make_trainer(disable_tqdm=False, max_steps=4, gradient_accumulation_steps=2).train()
    first, second, *_ = capfd.readouterr().out.splitlines()
    assert first.startswith("Training on cpu: use_cpu=True")
    assert second == "  0.0 M parameters, 4 steps of 16 examples"


def test_the_bar_has_an_estimate(make_trainer, capfd):
    make_trainer(disable_tqdm=False, max_steps=4).train()
    assert re.search(r"4/4 \[\d\d:\d\d<\d\d:\d\d", capfd.readouterr().err)


def test_bar_is_replaced_by_plain_logs_when_it_is_switched_off(make_trainer, capfd):
    trainer = make_trainer(disable_tqdm=True, max_steps=1)
    trainer.train()
    captured = capfd.readouterr()
    assert captured.err == ""
    assert "'loss'" in captured.out
    assert trainer.pop_callback(PrinterCallback) is not None


def test_transformers_name_of_the_callback_finds_it(make_trainer):
    trainer = make_trainer(disable_tqdm=False)
    assert isinstance(trainer.pop_callback(TransformersProgressCallback), ProgressCallback)
    assert trainer.pop_callback(ProgressCallback) is None


def test_evaluation_outside_a_run_needs_no_bar_of_training(make_trainer, capfd):
    make_trainer(disable_tqdm=False).evaluate()
    assert "3/3" in capfd.readouterr().err
