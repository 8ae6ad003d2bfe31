"""tools.apple_binary on a library and a wheel of a few hundred bytes."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from mps_trainer.check import OperatorTable, operator_table
from tests.conftest import refusal
from tools.apple_binary.__main__ import main
from tools.apple_binary.callers import GRAPH, READ, operators_reaching
from tools.apple_binary.compare import compare, operator_table_of
from tools.apple_binary.macho import MachO, MachOError
from tools.apple_binary.registrations import Registration, registrations
from tools.apple_binary.wheel import LIBRARY, IndexUnreachableError, Wheel, WheelError, download

# A Mach-O library and a wheel around it, a few hundred bytes each, put together by hand

CODE_AT, STRINGS_AT = 0x4000, 0x9000


def adrp(register: int, at: int, address: int) -> int:
    pages = (address >> 12) - (at >> 12) & 0x1FFFFF
    return 0x90000000 | (pages & 3) << 29 | (pages >> 2) << 5 | register


def add(register: int, source: int, constant: int) -> int:
    return 0x91000000 | constant << 10 | source << 5 | register


def branch_and_link(at: int, address: int) -> int:
    return 0x94000000 | (address - at >> 2) & 0x3FFFFFF


RETURN = 0xD65F03C0


class Code:
    """Instructions one after the other, from `start` on."""

    def __init__(self, start: int = CODE_AT) -> None:
        self.start = start
        self.words: list[int] = []

    @property
    def at(self) -> int:
        return self.start + 4 * len(self.words)

    def take_address(self, register: int, address: int) -> Code:
        self.words += [adrp(register, self.at, address), add(register, register, address & 0xFFF)]
        return self

    def call(self, address: int) -> Code:
        self.words.append(branch_and_link(self.at, address))
        return self

    def end(self) -> Code:
        self.words.append(RETURN)
        return self

    def to_bytes(self) -> bytes:
        return struct.pack(f"<{len(self.words)}I", *self.words)


def library(code: bytes, strings: bytes, symbols: dict[str, int]) -> bytes:
    """A library with one section of code and one of strings."""
    names = b" \0" + b"".join(name.encode() + b"\0" for name in symbols)
    header, segment, symtab = 32, 72 + 2 * 80, 24
    code_offset = header + segment + symtab
    strings_offset = code_offset + len(code)
    symbols_offset = strings_offset + len(strings)
    names_offset = symbols_offset + 16 * len(symbols)

    data = struct.pack("<8I", 0xFEEDFACF, 0x0100000C, 0, 6, 2, segment + symtab, 0, 0)
    data += struct.pack("<2I16s4Q4I", 0x19, segment, b"__TEXT", 0, 0x10000, 0, len(code) + len(strings), 5, 5, 2, 0)
    for name, address, size, offset, flags in (
        (b"__text", CODE_AT, len(code), code_offset, 0x80000400),
        (b"__cstring", STRINGS_AT, len(strings), strings_offset, 0x2),
    ):
        data += struct.pack("<16s16s2Q8I", name, b"__TEXT", address, size, offset, 0, 0, 0, flags, 0, 0, 0)
    data += struct.pack("<6I", 0x2, symtab, symbols_offset, len(symbols), names_offset, len(names))
    data += code + strings
    at = 2
    for name, address in symbols.items():
        data += struct.pack("<IBBHQ", at, 0x0E if address else 0x01, 1 if address else 0, 0, address)
        at += len(name.encode()) + 1
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


IMPL = "__ZNR5torch7Library5_implEPKcONS_11CppFunctionENS_17_RegisterOrVerifyE"
IMPL_AT = 0x5000
KERNELS = {
    "__ZN12wrapper_MPS_add_outE": 0x5100,
    "__ZN12mps_fallbackE": 0x5200,
    "__ZN23slow_conv2d_forward_mpsE": 0x5300,
    "__ZN2at8autocast13WrapFunction_ILNS0_10CastPolicyE1ELN3c10": 0x5400,
    "__ZN2at8autocast13WrapFunction_ILNS0_10CastPolicyE4ELN3c10": 0x5500,
}
GENERATED, FALLBACK, BY_HAND, FLOAT32, PROMOTE = KERNELS.values()
NAMES = b"add.out embedding_renorm_ linalg_svd _slow_conv2d_forward aten::exp aten::dot other".split()


def init(key: str, number: int = 1, namespace: str = "aten") -> str:
    return f"__ZN2at12_GLOBAL__N_1TORCH_LIBRARY_IMPL_init_{namespace}_{key}_{number}ERN5torch7LibraryE"


def torch_library() -> MachO:
    """Two generated registrations, three by hand, of which two fall back, and autocast's of two devices."""
    functions = {
        init("MPS"): [(1, GENERATED, b"add.out")],
        # The fallback stays in a register that calls leave alone, as in torch's own builds.
        init("MPS", 2): [
            (21, FALLBACK, b"embedding_renorm_"),
            (1, BY_HAND, b"_slow_conv2d_forward"),
            (0, 0, b"linalg_svd"),
        ],
        init("AutocastMPS"): [(1, FLOAT32, b"aten::exp"), (1, PROMOTE, b"aten::dot")],
        init("AutocastCPU"): [(1, PROMOTE, b"aten::exp")],
        init("MPS", namespace="mine"): [(1, GENERATED, b"other")],
        init("MPS", 3) + ".cold.1": [(1, GENERATED, b"other")],
    }
    symbols = {IMPL: IMPL_AT, init("MPS", 4): 0, **KERNELS}  # that at 0 is defined elsewhere
    code, strings = Code(), b"".join(name + b"\0" for name in NAMES)
    for symbol, calls in functions.items():
        symbols[symbol] = code.at
        for register, kernel, name in calls:
            if kernel:
                code.take_address(register, kernel)
            code.take_address(1, STRINGS_AT + strings.index(name + b"\0")).call(IMPL_AT)
        code.end()
    padding = bytes(0x2000 - 4 * len(code.words))
    return MachO(library(code.to_bytes() + padding, strings, symbols))


def test_a_registration_whose_name_cannot_be_read_is_an_error():
    code = Code().call(IMPL_AT).end().to_bytes()
    binary = MachO(library(code + bytes(0x2000), b"\0", {init("MPS"): CODE_AT, IMPL: IMPL_AT}))
    assert "no name" in refusal(registrations, binary, kind=MachOError)


def test_operators_whose_kernels_reach_a_function_are_found():
    """`direct` calls it, `queued` takes the address of a block that does, and `dispatched` calls another operator."""
    code, symbols = Code(), {}

    def function(name: str, *calls: str, takes: str = "") -> None:
        symbols[name] = code.at
        if takes:
            code.take_address(1, symbols[takes])
        for call in calls:
            code.call(symbols[call])
        code.end()

    function("__ZN3mps13MPSGraphCache6LookUpERK")
    function("helper", "__ZN3mps13MPSGraphCache6LookUpERK")
    function("__ZN2at4_ops2mm4callERK", "helper")
    function("direct", "helper")
    function("queued", takes="helper")
    function("dispatched", "__ZN2at4_ops2mm4callERK")
    binary = MachO(library(code.to_bytes(), b"\0", symbols))
    found = [Registration(f"aten::{name}", "MPS", (name,)) for name in ("direct", "queued", "dispatched")]
    assert operators_reaching(binary, found, GRAPH) == {"aten::direct", "aten::queued"}
    assert operators_reaching(binary, found, READ) == set()


def test_members_are_compared_with_the_record(tmp_path):
    path = wheel(tmp_path / "torch.whl", {"torchgen/a.py": b"a", LIBRARY: b"code"})
    assert Wheel(path).read(LIBRARY) == b"code"
    Wheel(path).extract("torchgen/", tmp_path / "out")
    assert (tmp_path / "out" / "torchgen" / "a.py").read_bytes() == b"a"
    assert not (tmp_path / "out" / "torch").exists()

    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (members | {LIBRARY: b"evil"}).items():
            archive.writestr(name, content)
    assert "differs from RECORD" in refusal(Wheel(path).read, LIBRARY, kind=WheelError)
    assert "has no torch/other" in refusal(Wheel(path).read, "torch/other", kind=WheelError)


def test_a_member_that_leaves_the_folder_is_not_written(tmp_path):
    path = wheel(tmp_path / "torch.whl", {"torchgen/../../evil": b"a"})
    assert "outside" in refusal(Wheel(path).extract, "torchgen/", tmp_path / "out", kind=WheelError)
    assert not (tmp_path / "evil").exists()


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

    def run(command, **settings):
        return subprocess.CompletedProcess(command, 1, "", made.says)

    monkeypatch.setattr("tools.apple_binary.wheel.subprocess.run", run)
    return made


def table(*native: str) -> OperatorTable:
    return OperatorTable("9.9.9", frozenset(native), frozenset(), frozenset())


def test_known_differences_have_their_reason_and_the_others_none():
    found = registrations(torch_library())
    assert torch_library().string(CODE_AT) is None
    assert {each.operator for each in found if each.is_generated} == {"aten::add.out", "mine::other"}
    comparison = compare(table("aten::add.out", "aten::gone"), found)
    assert comparison.registered == {"MPS": 5, "AutocastMPS": 2}
    assert set(comparison.explained) == {"aten::embedding_renorm_", "aten::linalg_svd", "aten::_slow_conv2d_forward"}
    assert comparison.unexplained == ["mine::other", "aten::gone"]
    assert comparison.fall_back == ["aten::embedding_renorm_", "aten::linalg_svd"]
    assert comparison.autocast == {"aten::dot": "promote", "aten::exp": "fp32"}
    assert "aten::gone: UNEXPLAINED" in str(comparison)


def test_an_operator_for_sparse_tensors_alone_is_registered_too():
    sparse = Registration("aten::_coalesce", "SparseMPS", ())
    assert compare(table("aten::_coalesce"), [sparse]).unexplained == []
    assert compare(table("aten::_coalesce"), []).unexplained == ["aten::_coalesce"]


def test_the_table_is_that_of_the_wheel_read_by_its_own_torchgen(tmp_path, monkeypatch):
    """With the installed torchgen as the wheel's, so that the answer is known."""
    import torchgen

    installed = operator_table()
    monkeypatch.setattr("mps_trainer.check.table._has_kernel", lambda *_: pytest.fail("asked this process"))
    folder = Path(torchgen.__file__).parent
    files = [*folder.rglob("*.py"), *(folder / "packaged" / "ATen" / "native").glob("*.yaml")]
    members = {f"torchgen/{file.relative_to(folder).as_posix()}": file.read_bytes() for file in files}
    path = wheel(tmp_path / "torch.whl", members)
    found = operator_table_of(Wheel(path), "9.9.9")
    assert found.torch_version == "9.9.9"
    # What torch registers from Python, and not from the table, is not in a table of another release.
    assert found.native <= installed.native
    assert len(found.native) > 0.99 * len(installed.native)
    assert sys.modules["torchgen"] is torchgen


@pytest.mark.parametrize(("native", "status"), [("aten::add.out", 0), ("aten::mul.out", 1)])
def test_the_command_ends_with_1_where_a_difference_has_no_reason(tmp_path, monkeypatch, capsys, native, status):
    code = Code().take_address(1, GENERATED).take_address(1, STRINGS_AT).call(IMPL_AT).end().to_bytes()
    binary = library(code + bytes(0x2000), b"add.out\0", {init("MPS"): CODE_AT, IMPL: IMPL_AT, **KERNELS})
    path = wheel(tmp_path / "torch-9.9.9-cp311-cp311-macosx_14_0_arm64.whl", {LIBRARY: binary})
    monkeypatch.setattr("tools.apple_binary.compare.operator_table_of", lambda wheel, version: table(native))
    assert main(["9.9.9", "--cache", str(tmp_path), "--json", str(tmp_path / "found.json")]) == status
    assert ("UNEXPLAINED" in capsys.readouterr().out) is bool(status)
    (written,) = json.loads((tmp_path / "found.json").read_text())
    assert written["wheel"] == path.name
    assert written["registered"] == {"MPS": 1}


@pytest.mark.parametrize(
    ("version", "says"),
    [("9.9.9", "No matching distribution found"), ("2.15.0 --pre", "not the version of")],
)
def test_the_command_ends_with_2_where_there_is_nothing_to_compare(tmp_path, capsys, pip, version, says):
    pip.says = "ERROR: No matching distribution found"
    assert main([version, "--cache", str(tmp_path)]) == 2
    assert says in capsys.readouterr().err
