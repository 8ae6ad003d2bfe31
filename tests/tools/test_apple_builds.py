"""The operator table and the list of autocast against torch's own builds for Apple silicon: 70 to 140 MB each."""

from pathlib import Path

import pytest
import torch

from mps_trainer.tools.check.autocast import policy
from mps_trainer.tools.check.table import always_falls_back
from tools.apple_binary.compare import Comparison, compare_wheel
from tools.apple_binary.macho import MachO
from tools.apple_binary.registrations import registrations
from tools.apple_binary.wheel import LIBRARY, IndexUnreachableError, Wheel, default_cache, download

pytestmark = pytest.mark.acceptance

PAGE = Path(__file__).parents[2] / "docs" / "check.md"
# What always runs on the CPU: the oldest supported release, an older one that is tested, and the newest.
FALL_BACK = {
    "2.6.0": {"embedding_renorm_", "linalg_svd", "linalg_svd.U", "col2im", "upsample_nearest3d.vec"},
    "2.13.0": {"embedding_renorm_", "linalg_svd", "linalg_svd.U"},
    "2.15.0": {"embedding_renorm_"},
}


@pytest.fixture(scope="module", params=FALL_BACK)
def wheel(request) -> Path:
    try:
        return download(request.param, default_cache())
    except IndexUnreachableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def comparison(wheel) -> Comparison:
    return compare_wheel(wheel.name.split("-")[1], wheel)


def test_every_difference_has_its_reason(comparison):
    assert comparison.unexplained == []
    assert comparison.only_in_table == []
    by_hand = FALL_BACK[comparison.torch_version] | {"_slow_conv2d_forward"}
    assert comparison.only_registered == sorted(f"aten::{name}" for name in by_hand)
    assert comparison.by_hand == comparison.only_registered


def test_what_always_runs_on_the_cpu(comparison):
    assert {name.removeprefix("aten::") for name in comparison.fall_back} == FALL_BACK[comparison.torch_version]
    assert set(comparison.fall_back) == always_falls_back(comparison.torch_version)


def test_the_list_of_autocast_is_that_of_the_build(comparison):
    assert comparison.autocast == {operator: policy(operator) for operator in comparison.autocast}
    if comparison.torch_version == torch.__version__.partition("+")[0]:
        registered = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastMPS")
        assert set(comparison.autocast) == set(registered)


def test_the_page_has_the_number_of_operators_that_compile_graphs(comparison):
    text = f"{len(comparison.graphs)} in {comparison.torch_version}"
    assert (text in " ".join(PAGE.read_text(encoding="utf-8").split())) == (comparison.torch_version != "2.6.0")
    assert "aten::masked_fill_.Tensor" in comparison.reads


def test_what_is_lower_precision_on_mps_is_so_on_the_cpu_too_where_the_cpu_casts(wheel):
    """So the kernels of the CPU may stay for these while a trace is on."""
    library = MachO(Wheel(wheel).read(LIBRARY))
    on_cpu = {found.operator: found.policy for found in registrations(library, device="AutocastCPU")}
    on_mps = {found.operator: found.policy for found in registrations(library) if found.key == "AutocastMPS"}
    shared = {name for name, policy in on_mps.items() if policy == "lower_precision_fp" and name in on_cpu}
    assert len(shared) > 10
    assert {on_cpu[name] for name in shared} == {"lower_precision_fp"}
