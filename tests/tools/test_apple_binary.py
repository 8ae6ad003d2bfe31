"""tools.apple_binary on a library and a wheel of a few hundred bytes."""

from __future__ import annotations

import json
import zipfile

import pytest

from tools.apple_binary import compare as comparing
from tools.apple_binary.__main__ import main
from tools.apple_binary.arm64 import Call, Reference, Slot, decode
from tools.apple_binary.compare import Comparison, Known, compare
from tools.apple_binary.macho import MachO, MachOError
from tools.apple_binary.registrations import registrations
from tools.apple_binary.wheel import LIBRARY, Wheel, WheelError, download

from .tiny import CODE_AT, POINTERS_AT, STRINGS_AT, Code, add, adrp, library, wheel


# Code


def test_an_address_in_two_instructions_is_found():
    code = Code().take_address(1, STRINGS_AT + 0x12).end()
    assert list(decode(code.to_bytes(), CODE_AT)) == [Reference(CODE_AT + 4, STRINGS_AT + 0x12)]


def test_other_instructions_may_stand_between_the_two():
    code = Code()
    code.words += [adrp(8, CODE_AT, STRINGS_AT), adrp(9, CODE_AT + 4, POINTERS_AT), add(1, 8, 0x20)]
    assert list(decode(code.to_bytes(), CODE_AT)) == [Reference(CODE_AT + 8, STRINGS_AT + 0x20)]


def test_an_address_before_the_code_is_found():
    code = Code(0x2_0000_4000).take_address(1, 0x1_0000_9010)
    assert [found.address for found in decode(code.to_bytes(), code.start)] == [0x1_0000_9010]


def test_an_addition_to_an_unknown_register_is_no_address():
    code = Code()
    code.words += [add(1, 8, 0x20)]
    assert list(decode(code.to_bytes(), CODE_AT)) == []


def test_a_register_is_unknown_after_a_call_and_one_that_calls_keep_is_not():
    code = Code()
    code.words += [adrp(8, CODE_AT, STRINGS_AT), adrp(20, CODE_AT, STRINGS_AT)]
    code.call(CODE_AT + 0x100)
    code.words += [add(1, 8, 1), add(2, 20, 2)]
    call, kept = decode(code.to_bytes(), CODE_AT)
    assert call == Call(CODE_AT + 8, CODE_AT + 0x100)
    assert kept == Reference(CODE_AT + 16, STRINGS_AT + 2)


def test_pointers_and_calls_are_told_apart():
    code = Code().load(0, POINTERS_AT + 0x18).call(CODE_AT - 0x40).end()
    assert list(decode(code.to_bytes(), CODE_AT)) == [
        Slot(CODE_AT + 4, POINTERS_AT + 0x18),
        Call(CODE_AT + 8, CODE_AT - 0x40),
    ]


# Library


def test_symbols_functions_and_strings_are_read():
    code = Code().take_address(1, STRINGS_AT + 6).end().to_bytes()
    binary = MachO(library(code, b"hello\0add.out\0", {"first": CODE_AT, "second": CODE_AT + 8, "elsewhere": 0}))
    assert list(binary.symbols_with("cond")) == [("second", CODE_AT + 8)]
    assert list(binary.symbols_with("elsewhere")) == []  # not defined here
    assert binary.symbol_at(CODE_AT) == "first"
    assert binary.symbol_at(CODE_AT + 4) is None
    assert binary.function(CODE_AT) == code[:8]
    assert binary.function(CODE_AT + 8) == code[8:]
    assert binary.string(STRINGS_AT + 6) == "add.out"
    assert binary.string(CODE_AT) is None


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"\xca\xfe\xba\xbe" + bytes(100), library(b"", b"", {"a": 1})[:-30]])
def test_what_is_no_library_for_apple_silicon_is_refused(content):
    with pytest.raises(MachOError, match="library"):
        MachO(content)
