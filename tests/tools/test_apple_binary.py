"""tools.apple_binary on a library and a wheel of a few hundred bytes."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from mps_trainer.check import OperatorTable
from tests.conftest import refusal
from tools.apple_binary.__main__ import main
from tools.apple_binary.compare import compare
from tools.apple_binary.macho import MachO, MachOError
from tools.apple_binary.registrations import Registration, registrations
from tools.apple_binary.wheel import LIBRARY, TABLE, IndexUnreachableError, Wheel, WheelError, download

# A Mach-O library and a wheel around it, put together by hand

CODE_AT, IMPL_AT, KERNEL_AT, STRINGS_AT = 0x4000, 0x5000, 0x5100, 0x9000
SYMBOLS = {
    "__ZN2at12_GLOBAL__N_1TORCH_LIBRARY_IMPL_init_aten_MPS_1ERN5torch7LibraryE": CODE_AT,
    "__ZNR5torch7Library5_implEPKcONS_11CppFunctionENS_17_RegisterOrVerifyE": IMPL_AT,
    "__ZN12wrapper_MPS_add_outE": KERNEL_AT,
}


def library(*addresses: int) -> bytes:
    """A library whose code registers an operator with these addresses in register 1, one after the other."""
    words = []
    for address in addresses:
        pages = (address - CODE_AT) >> 12
        words += [0x90000001 | (pages & 3) << 29 | (pages >> 2) << 5, 0x91000021 | (address & 0xFFF) << 10]
    words += [0x94000000 | (IMPL_AT - CODE_AT) // 4 - len(words), 0xD65F03C0]  # calls _impl, and returns
    code, strings = struct.pack(f"<{len(words)}I", *words).ljust(0x2000, b"\0"), b"add.out\0"
    names = b" \0" + b"".join(name.encode() + b"\0" for name in SYMBOLS)
    header, segment, symtab = 32, 72 + 2 * 80, 24
    code_offset = header + segment + symtab
    strings_offset = code_offset + len(code)
    symbols_offset = strings_offset + len(strings)
    names_offset = symbols_offset + 16 * len(SYMBOLS)

    data = struct.pack("<8I", 0xFEEDFACF, 0x0100000C, 0, 6, 2, segment + symtab, 0, 0)
    data += struct.pack("<2I16s4Q4I", 0x19, segment, b"__TEXT", 0, 0x10000, 0, len(code) + len(strings), 5, 5, 2, 0)
    for name, address, size, offset, flags in (
        (b"__text", CODE_AT, len(code), code_offset, 0x80000400),
        (b"__cstring", STRINGS_AT, len(strings), strings_offset, 0x2),
    ):
        data += struct.pack("<16s16s2Q8I", name, b"__TEXT", address, size, offset, 0, 0, 0, flags, 0, 0, 0)
    data += struct.pack("<6I", 0x2, symtab, symbols_offset, len(SYMBOLS), names_offset, len(names))
    data += code + strings
    at = 2
    for name, address in SYMBOLS.items():
        data += struct.pack("<IBBHQ", at, 0x0E, 1, 0, address)
        at += len(name) + 1
    return data + names


def wheel(path: Path, members: dict[str, bytes]) -> Path:
    """A wheel with these members, and a RECORD of their digests."""
    rows = []
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            rows.append(f"{name},sha256={digest},{len(content)}")
        archive.writestr("torch-9.9.9.dist-info/RECORD", "\n".join([*rows, "torch-9.9.9.dist-info/RECORD,,"]))
    return path


def test_a_registration_whose_name_cannot_be_read_is_an_error():
    assert "no name" in refusal(registrations, MachO(library(KERNEL_AT)), kind=MachOError)


def test_members_are_compared_with_the_record(tmp_path):
    path = wheel(tmp_path / "torch.whl", {LIBRARY: b"code"})
    assert Wheel(path).read(LIBRARY) == b"code"
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (members | {LIBRARY: b"evil"}).items():
            archive.writestr(name, content)
    assert "differs from RECORD" in refusal(Wheel(path).read, LIBRARY, kind=WheelError)
    assert "has no torch/other" in refusal(Wheel(path).read, "torch/other", kind=WheelError)


@pytest.mark.parametrize(
    ("versions", "unreachable"), [("none", True), ("2.6.0, 2.15.0", False)], ids=["no index", "no such version"]
)
def test_a_missing_version_is_told_from_an_index_that_does_not_answer(tmp_path, pip, versions, unreachable):
    pip.says = f"ERROR: nothing (from versions: {versions})\nERROR: No matching distribution found for torch==9.9.9"
    with pytest.raises(WheelError, match=r"No matching distribution found for torch==9\.9\.9") as raised:
        download("9.9.9", tmp_path)
    assert isinstance(raised.value, IndexUnreachableError) is unreachable


@pytest.fixture
def pip(monkeypatch):
    """Takes the place of pip, which fails with what it says."""
    made = SimpleNamespace(says="")
    run = "tools.apple_binary.wheel.subprocess.run"
    monkeypatch.setattr(run, lambda command, **_: subprocess.CompletedProcess(command, 1, "", made.says))
    return made


def test_known_differences_have_their_reason_and_the_others_none():
    found = [
        Registration("aten::add.out", "MPS", ("wrapper_MPS_add_out",)),
        Registration("aten::linalg_svd", "MPS", ("mps_fallback",)),
        Registration("aten::_slow_conv2d_forward", "MPS", ("slow_conv2d_forward_mps",)),
        Registration("mine::other", "MPS", ("wrapper_MPS_add_out",)),
        Registration("aten::_coalesce", "SparseMPS", ()),
        Registration("aten::exp", "AutocastMPS", ("8autocast13WrapFunction_ILNS0_10CastPolicyE1E",)),
    ]
    native = frozenset(("aten::add.out", "aten::_coalesce", "aten::gone"))
    comparison = compare(OperatorTable("9.9.9", native, frozenset(), frozenset()), found)
    assert comparison.registered == {"MPS": 4, "SparseMPS": 1, "AutocastMPS": 1}
    assert set(comparison.explained) == {"aten::linalg_svd", "aten::_slow_conv2d_forward"}
    assert comparison.unexplained == ["mine::other", "aten::gone"]
    assert comparison.fall_back == ["aten::linalg_svd"]
    assert comparison.by_hand == ["aten::_slow_conv2d_forward", "aten::linalg_svd"]
    assert comparison.autocast == {"aten::exp": "fp32"}
    assert "aten::gone: UNEXPLAINED" in str(comparison)


@pytest.mark.parametrize(("native", "status"), [("add.out", 0), ("mul.out", 1)])
def test_the_command_ends_with_1_where_a_difference_has_no_reason(tmp_path, capsys, native, status):
    entry = f"- func: {native}(Tensor self) -> Tensor\n  dispatch:\n    CPU, MPS: kernel\n"
    members = {LIBRARY: library(KERNEL_AT, STRINGS_AT), TABLE: entry.encode()}
    path = wheel(tmp_path / "torch-9.9.9-cp311-cp311-macosx_14_0_arm64.whl", members)
    assert main(["9.9.9", "--cache", str(tmp_path), "--json", str(tmp_path / "found.json")]) == status
    assert ("UNEXPLAINED" in capsys.readouterr().out) is bool(status)
    (written,) = json.loads((tmp_path / "found.json").read_text())
    assert written["wheel"] == path.name
    assert (written["registered"], written["by_hand"]) == ({"MPS": 1}, [])


@pytest.mark.parametrize(
    ("version", "says"), [("9.9.9", "No matching distribution found"), ("2.15.0 --pre", "not the version of")]
)
def test_the_command_ends_with_2_where_there_is_nothing_to_compare(tmp_path, capsys, pip, version, says):
    pip.says = "ERROR: No matching distribution found"
    assert main([version, "--cache", str(tmp_path)]) == 2
    assert says in capsys.readouterr().err
