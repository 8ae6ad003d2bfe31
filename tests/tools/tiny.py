"""A Mach-O library and a wheel around it, a few hundred bytes each, put together by hand."""

from __future__ import annotations

import base64
import hashlib
import struct
import zipfile
from pathlib import Path

CODE_AT, STRINGS_AT, POINTERS_AT = 0x4000, 0x9000, 0xA000


def adrp(register: int, at: int, address: int) -> int:
    pages = (address >> 12) - (at >> 12) & 0x1FFFFF
    return 0x90000000 | (pages & 3) << 29 | (pages >> 2) << 5 | register


def add(register: int, source: int, constant: int) -> int:
    return 0x91000000 | constant << 10 | source << 5 | register


def ldr(register: int, source: int, offset: int) -> int:
    return 0xF9400000 | offset // 8 << 10 | source << 5 | register


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

    def load(self, register: int, address: int) -> Code:
        self.words += [adrp(register, self.at, address), ldr(register, register, address & 0xFFF)]
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
