"""Scenarios in which processes send each other objects. The tensors of the second differ from the first's."""

from collections.abc import Callable
from typing import Any

import torch

from mps_trainer import MisconfigurationException, Trainer
from mps_trainer.distributed import Processes
from mps_trainer.evaluation.batches import in_step
from tests.conftest import Classifier, examples
from tests.distributed.scenarios import arguments, scenario


def raised(work: Callable[[], Any]) -> tuple[str, str] | None:
    try:
        work()
    except Exception as error:
        return type(error).__name__, str(error)
    return None


@scenario
def objects(folder: str) -> dict[str, Any]:
    processes = Processes.of(arguments(folder))
    rank = processes.rank
    ran = []

    def work(error: Exception | None = None) -> str:
        ran.append(rank)
        if error is not None:
            raise error
        return f"of {rank}"

    return {
        "sum": processes.sum([rank + 1, 0.5]),
        "highest": processes.all_reduce_max([rank, -rank]),
        "gather": processes.gather({"rank": rank}),
        "result": processes.first_does(work),
        "the_users": raised(lambda: processes.first_does(lambda: work(MisconfigurationException("No such folder.")))),
        "another": raised(lambda: processes.first_does(lambda: work(KeyError("loss")))),
        "cannot_be_sent": raised(lambda: processes.first_does(lambda: lambda: None)),
        "gather_cannot_be_sent": raised(lambda: processes.gather(raised if rank == 0 else lambda: None)),
        "in_step": list(in_step([] if rank == 0 else ["a", "b"], processes)),
        "ran": ran,
        "after": processes.first_does(lambda: "still together"),
    }


@scenario
def tensors(folder: str) -> dict[str, Any]:
    accelerator = Trainer(Classifier(), arguments(folder), train_dataset=examples(8)).accelerator
    rank = accelerator.process_index
    row = torch.tensor([rank + 1, 10 * (rank + 1)])
    uneven = torch.arange(2 * (rank + 1)).reshape(rank + 1, 2)
    return {
        "gather": accelerator.gather(row),
        "metrics": accelerator.gather_for_metrics((uneven, row)),
        "metrics_by_name": accelerator.gather_for_metrics({"rows": uneven, "number": torch.tensor(rank)}),
        "metrics_texts": accelerator.gather_for_metrics([f"text {rank}", "other"]),
        "metrics_uneven": accelerator.gather_for_metrics([uneven], use_gather_object=True),
        "sum": accelerator.reduce(row),
    }
