"""GLUE's metrics as a module for `evaluate`, so that `evaluate.load` needs no code from the hub."""

import datasets
import evaluate
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

_DESCRIPTION = "The metrics of each GLUE task: accuracy, F1, Matthews correlation, Pearson and Spearman correlation."

_CITATION = """\
@inproceedings{wang2019glue,
  title={{GLUE}: A Multi-Task Benchmark and Analysis Platform for Natural Language Understanding},
  author={Wang, Alex and Singh, Amanpreet and Michael, Julian and Hill, Felix and Levy, Omer and Bowman, Samuel R.},
  booktitle={ICLR},
  year={2019}
}
"""

_INPUTS = """\
Args:
    predictions: class ids, or scores for stsb.
    references: the true ones.
Returns:
    A dictionary: matthews_correlation for cola; pearson and spearmanr for stsb; accuracy and f1 for mrpc and qqp;
    accuracy for the others.
"""

_ACCURACY = {"sst2", "mnli", "mnli_matched", "mnli_mismatched", "qnli", "rte", "wnli", "hans"}
_ACCURACY_AND_F1 = {"mrpc", "qqp"}
_NAMES = sorted({"cola", "stsb"} | _ACCURACY | _ACCURACY_AND_F1)


class Glue(evaluate.Metric):
    def _info(self):
        if self.config_name not in _NAMES:
            raise ValueError(f"{self.config_name!r} is no GLUE task: it must be one of {', '.join(_NAMES)}.")
        value = datasets.Value("float32" if self.config_name == "stsb" else "int64")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": value, "references": value}),
            format="numpy",
        )

    def _compute(self, predictions, references):
        if self.config_name == "cola":
            return {"matthews_correlation": float(matthews_corrcoef(references, predictions))}
        if self.config_name == "stsb":
            return {
                "pearson": float(pearsonr(predictions, references)[0]),
                "spearmanr": float(spearmanr(predictions, references)[0]),
            }
        metrics = {"accuracy": float(accuracy_score(references, predictions))}
        if self.config_name in _ACCURACY_AND_F1:
            metrics["f1"] = float(f1_score(references, predictions, zero_division=0))
        return metrics
