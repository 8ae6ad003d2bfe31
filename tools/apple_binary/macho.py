"""Reads a Mach-O library for 64-bit Arm: its symbols, and the bytes at an address.

Two load commands are all that this takes. A test compares it with a file made by hand.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

MAGIC_64 = 0xFEEDFACF
CPU_ARM64 = 0x0100000C
LC_SYMTAB = 0x2
LC_SEGMENT_64 = 0x19

# n_type of a symbol: the first three bits mark debugging entries; N_SECT is one that is defined in a section.
N_STAB, N_TYPE, N_SECT = 0xE0, 0x0E, 0x0E
# Of a section's flags: it holds C strings and nothing else.
S_CSTRING_LITERALS = 0x2

_SYMBOL = np.dtype([("name", "<u4"), ("type", "u1"), ("section", "u1"), ("description", "<u2"), ("address", "<u8")])


class MachOError(ValueError):
    """The file is not a Mach-O library for 64-bit Arm, or is truncated."""


@dataclass(frozen=True)
class Section:
    name: str
    address: int
    size: int
    offset: int
    flags: int

    def __contains__(self, address: int) -> bool:
        return self.address <= address < self.address + self.size

    @property
    def is_strings(self) -> bool:
        return self.flags & 0xFF == S_CSTRING_LITERALS


class MachO:
    """Holds one library in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.sections: list[Section] = []
        self._symbols = np.empty(0, _SYMBOL)
        self._names = (0, 0)  # offset and size of the string table
        try:
            magic, cpu, _, _, commands, _ = struct.unpack_from("<6I", data)
            if (magic, cpu) != (MAGIC_64, CPU_ARM64):
                raise MachOError(f"no Mach-O library for 64-bit Arm: it begins with {data[:8].hex(' ')}")
            self._read_commands(commands)
        except struct.error as error:
            raise MachOError(f"the library is cut short: {error}") from error
        defined = (self._symbols["type"] & N_STAB == 0) & (self._symbols["type"] & N_TYPE == N_SECT)
        self._symbols = np.sort(self._symbols[defined], order="address", kind="stable")
        self._addresses = self._symbols["address"]

    def _read_commands(self, count: int) -> None:
        at = 32
        for _ in range(count):
            command, size = struct.unpack_from("<2I", self._data, at)
            if command == LC_SEGMENT_64:
                (sections,) = struct.unpack_from("<I", self._data, at + 64)
                for i in range(sections):
                    self.sections.append(self._section(at + 72 + 80 * i))
            elif command == LC_SYMTAB:
                offset, symbols, names, names_size = struct.unpack_from("<4I", self._data, at + 8)
                if max(offset + symbols * _SYMBOL.itemsize, names + names_size) > len(self._data):
                    raise MachOError("the library is cut short: its symbols lie beyond its end")
                self._symbols = np.frombuffer(self._data, _SYMBOL, symbols, offset)
                self._names = (names, names_size)
            at += max(size, 8)

    def _section(self, at: int) -> Section:
        name, _, address, size, offset, _, _, _, flags = struct.unpack_from("<16s16s2Q5I", self._data, at)
        return Section(name.rstrip(b"\0").decode("ascii", "replace"), address, size, offset, flags)

    def symbols_with(self, text: str) -> Iterator[tuple[str, int]]:
        """Yields name and address of each symbol whose name contains `text`."""
        start, size = self._names
        wanted, at = set(), start - 1
        while (at := self._data.find(text.encode(), at + 1, start + size)) >= 0:
            wanted.add(self._data.rfind(b"\0", start, at) + 1 - start if at > start else 0)
        for i in np.flatnonzero(np.isin(self._symbols["name"], list(wanted))):
            yield self._name(int(self._symbols["name"][i])), int(self._addresses[i])

    def symbol_at(self, address: int) -> str | None:
        """Returns the name of the symbol at exactly this address; None if there is none."""
        i = int(np.searchsorted(self._addresses, address))
        if i == len(self._addresses) or int(self._addresses[i]) != address:
            return None
        return self._name(int(self._symbols["name"][i]))

    def function(self, address: int) -> bytes:
        """Returns the code from `address` to the next symbol, or to the end of the section."""
        section = self._section_of(address)
        if section is None:
            raise MachOError(f"there is no section at {address:#x}")
        end = section.address + section.size
        following = int(np.searchsorted(self._addresses, address, side="right"))
        if following < len(self._addresses):
            end = min(end, int(self._addresses[following]))
        start = section.offset + address - section.address
        return self._data[start : start + end - address]

    def functions(self) -> tuple[np.ndarray, list[str]]:
        """Returns the addresses of all symbols in order, and the name of one symbol at each."""
        addresses, first = np.unique(self._addresses, return_index=True)
        return addresses.astype(np.int64), [self._name(int(name)) for name in self._symbols["name"][first]]

    def text(self) -> tuple[Section, np.ndarray]:
        """Returns the section of code and its instructions."""
        section = next(section for section in self.sections if section.name == "__text")
        words = np.frombuffer(self._data, "<u4", section.size // 4, section.offset)
        return section, words.astype(np.int64)

    def string(self, address: int) -> str | None:
        """Returns the C string at `address`; None if no section of strings is there."""
        section = self._section_of(address)
        if section is None or not section.is_strings:
            return None
        start = section.offset + address - section.address
        end = self._data.index(b"\0", start)
        return self._data[start:end].decode("utf-8", "replace")

    def _section_of(self, address: int) -> Section | None:
        return next((section for section in self.sections if address in section), None)

    def _name(self, offset: int) -> str:
        start = self._names[0] + offset
        return self._data[start : self._data.index(b"\0", start)].decode("utf-8", "replace")
