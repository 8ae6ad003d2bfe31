"""GLUE's metrics, loaded by `evaluate`, equal those of scikit-learn and SciPy."""

import socket

import evaluate
import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from .conftest import EXAMPLE

METRIC = str(EXAMPLE / "metrics" / "glue")


@pytest.fixture(autouse=True)
def no_hub(monkeypatch):
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("the metric tried to reach a network"))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("task", ["cola", "sst2", "mrpc", "qqp", "mnli", "mnli_matched", "mnli_mismatched", "rte"])
def test_classification_metrics_equal_scikit_learn(task, seed):
    random = np.random.default_rng(seed)
    classes = 3 if "mnli" in task else 2
    predicted, true = random.integers(0, classes, (2, 50))
    expected = {"accuracy": metrics.accuracy_score(true, predicted)}
    if task == "cola":
        expected = {"matthews_correlation": metrics.matthews_corrcoef(true, predicted)}
    elif task in ("mrpc", "qqp"):
        expected["f1"] = metrics.f1_score(true, predicted)
    assert evaluate.load(METRIC, task).compute(predictions=predicted, references=true) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(3))
def test_regression_metrics_equal_scipy(seed):
    random = np.random.default_rng(seed)
    predicted, true = random.normal(size=(2, 50)).astype(np.float32)
    assert evaluate.load(METRIC, "stsb").compute(predictions=predicted, references=true) == pytest.approx(
        {"pearson": stats.pearsonr(predicted, true)[0], "spearmanr": stats.spearmanr(predicted, true)[0]}
    )


def test_constant_predictions_have_zero_f1_and_correlation():
    nothing, both = np.zeros(6, dtype=int), np.array([0, 1] * 3)
    assert evaluate.load(METRIC, "mrpc").compute(predictions=nothing, references=both) == {"accuracy": 0.5, "f1": 0.0}
    assert evaluate.load(METRIC, "cola").compute(predictions=nothing, references=both) == {"matthews_correlation": 0.0}
