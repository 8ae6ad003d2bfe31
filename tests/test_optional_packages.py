"""Without an optional package, features that need it name the extra, and all others work."""

import configparser
import importlib.util
import os
import re
import sys

import pytest

from mps_trainer import cli
from mps_trainer.errors import MissingPackageError
from mps_trainer.scripts.loading import errors_about
from mps_trainer.utils.installation import EXTRAS, how_to_install
from tests import ROOT, run_python
from tests.absent.without import COMMANDS, SCRIPT
from tests.cli.test_nothing_installed import imported_at_the_top
from tests.conftest import refusal
from tests.test_layers import MODULES, imports

SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg", encoding="utf-8")
MODULE_OF = {
    "pillow": "PIL",
    "pyyaml": "yaml",
    "scikit-learn": "sklearn",
    "sentence-transformers": "sentence_transformers",
}
# Modules that the packages of install_requires install, too.
BROUGHT = {"huggingface_hub", "markupsafe", "mps_trainer"}
# Modules that are imported only where their package is asked for.
OPTIONAL = {"distributed.mlx": "mlx", "distributed.mlx_ring": "mlx", "optim.low_bit": "torchao"}
# Other packages that this one, its dependencies or the examples import if they are installed.
OTHERS = ("liger_kernel", "pandas", "pyarrow", "ray", "sentencepiece", "tensorboard", "tensorboardX", "wandb")


def packages(requirements):
    """Returns the modules of the packages in a list of setup.cfg."""
    lines = [line for line in requirements.splitlines() if line and not line.startswith("#")]
    names = [re.match(r"[\w-]+", line)[0] for line in lines]
    return {MODULE_OF.get(name, name.replace("-", "_")) for name in names}


REQUIRED = packages(SETUP["options"]["install_requires"])


def test_each_module_imports_at_its_top_what_is_installed_everywhere():
    found = {}
    for name in MODULES:
        outside = {each.partition(".")[0] for each in imported_at_the_top(name)}
        if more := outside - REQUIRED - BROUGHT - set(sys.stdlib_module_names):
            found[name.removeprefix("mps_trainer.")] = more
    assert found == {name: {package} for name, package in OPTIONAL.items()}


def test_modules_of_optional_packages_are_imported_in_functions_alone():
    names = {f"mps_trainer.{name}" for name in OPTIONAL}
    importers = {name for name in MODULES if imports(name) & names and name not in names}
    assert importers == {"mps_trainer.distributed.group", "mps_trainer.optim.factory"}
    assert not {name for name in importers if names & set(imported_at_the_top(name))}


def test_extras_are_those_of_setup_cfg_that_install_the_package():
    extras = SETUP["options.extras_require"]
    assert {module for module, extra in EXTRAS.items() if module not in packages(extras[extra])} == set()
    optional = set().union(*(packages(extras[extra]) for extra in set(EXTRAS.values())))
    assert optional == set(EXTRAS)


@pytest.fixture
def absent(monkeypatch):
    """`absent("optuna")` makes every import of a package fail in this process."""

    def hide(package):
        for name in [each for each in sys.modules if each.partition(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)

    return hide


@pytest.mark.parametrize(
    ("package", "settings", "says"),
    [
        ("torchao", {"optim": "adamw_torch_8bit"}, "optim='adamw_torch_8bit' cannot be used here: torchao is not"),
        ("torchao", {"optim": "adamw_torch_4bit"}, "optim='adamw_torch_4bit' cannot be used here: torchao is not"),
        ("bitsandbytes", {"optim": "adamw_bnb_8bit"}, "optim='adamw_bnb_8bit' cannot be used here: bitsandbytes is"),
        ("bitsandbytes", {"optim": "lion_32bit"}, "optim='lion_32bit' cannot be used here: bitsandbytes is not"),
    ],
)
def test_an_optimizer_names_the_extra_of_its_package(absent, make_trainer, package, settings, says):
    absent(package)
    text = refusal(make_trainer(**settings).train, kind=MissingPackageError)
    assert text.startswith(says)
    assert f"not installed. {how_to_install(package)}. Or use one that torch alone provides" in text


@pytest.mark.parametrize("backend", [None, "optuna"])
def test_a_search_names_the_extra_of_optuna(absent, make_trainer, make_model, backend):
    for package in ("optuna", "ray", "wandb"):
        absent(package)
    trainer = make_trainer({"model_init": lambda: make_model()})
    text = refusal(trainer.hyperparameter_search, backend=backend)
    assert text.startswith("hyperparameter_search cannot run: ")
    assert text.endswith("installed. Run: python -m pip install 'mps_trainer[search]'")


def test_tensorboard_that_is_absent_is_named_with_its_command(absent, make_trainer):
    for package in ("tensorboard", "tensorboardX"):
        absent(package)
    text = refusal(make_trainer, report_to="tensorboard")
    assert text.endswith(
        "TensorBoard is not installed. Run: python -m pip install tensorboard, or leave report_to out."
    )


def test_images_that_cannot_be_decoded_name_the_extra_of_pillow():
    def load():
        with errors_about("dataset", "pictures", "Give a file."):
            try:
                raise ImportError("To support decoding images, please install 'Pillow'.")
            except ImportError as error:
                raise RuntimeError("An error occurred while generating the dataset") from error

    assert refusal(load) == (
        "The dataset pictures cannot be loaded: To support decoding images, please install 'Pillow'. "
        "Run: python -m pip install 'mps_trainer[examples]'"
    )


def test_without_pygal_training_writes_its_record_and_says_how_to_get_the_page(absent, trained, caplog, capsys):
    for name in ("pygal", "mps_trainer.reports.charts", "mps_trainer.reports.pages"):
        absent(name)
    trainer = trained(report=True, max_steps=1)
    (line,) = [message for message in caplog.messages if "pygal" in message]
    assert "`pip install pygal jinja2`, then `mps-trainer report" in line
    assert cli.main(["report", trainer.args.output_dir]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("Run: pip install pygal jinja2")


def run_without(*packages, words, cwd):
    path = os.pathsep.join(map(str, (ROOT / "tests" / "absent", ROOT)))
    settings = {"PYTHONPATH": path, "ABSENT": " ".join(packages), "ACCELERATE_USE_CPU": "true"}
    ran = run_python("-m", *words, cwd=cwd, **settings)
    assert "Traceback" not in ran.stderr
    assert ran.returncode == 0, ran.stderr
    return ran


ALL = sorted({*EXTRAS, *OTHERS})
ALONE = [name for name in ("tensorboard", *sorted(EXTRAS)) if importlib.util.find_spec(name) is not None]


@pytest.mark.integration
@pytest.mark.parametrize("packages", [ALL, *([name] for name in ALONE)], ids=lambda names: " ".join(names[:3]))
def test_without_packages_modules_load_and_commands_do_their_work(packages, tmp_path):
    ran = run_without(*packages, words=["tests.absent.without"], cwd=tmp_path)
    failed = {line.partition(":")[0] for line in ran.stderr.splitlines() if "No module named" in line}
    hidden = {name for name, package in OPTIONAL.items() if importlib.util.find_spec(package) is None}
    hidden |= {name for name, package in OPTIONAL.items() if package in packages}
    assert failed == {f"mps_trainer.{name}" for name in hidden}
    for command in COMMANDS:
        assert f"{command}: 0\n" in ran.stdout
    assert "trained in 1\n" in ran.stdout


@pytest.mark.integration
def test_without_all_packages_two_processes_train_and_the_device_is_simulated(built, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    two = ["mps_trainer", "launch", "--cpu", "--num_processes", "2", "train.py", "out"]
    assert run_without(*ALL, words=two, cwd=tmp_path).stdout.count("trained in") == 2
    run_without(*ALL, words=["mps_trainer", "selftest", "--simulate"], cwd=tmp_path)
