"""Finds the addresses and function calls in 64-bit Arm code.

The code that registers operators takes the address of each string in two instructions: ADRP for the 4 KiB page and ADD
for the place in it. Seven kinds of instruction are all that this reads; the others are passed over.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

PAGE = 0xFFF
KEPT = 19  # a call leaves this register and those after it as they are


@dataclass(frozen=True)
class Reference:
    """An address that the code computes in a register."""

    at: int
    address: int


@dataclass(frozen=True)
class Slot:
    """The address of a pointer that the code loads, as from the table of imported functions."""

    at: int
    address: int


@dataclass(frozen=True)
class Call:
    """A call of the function at `address`, or a jump there at the end of the code.

    `registers` are those whose value is known then: x0 to x7 hold the arguments.
    """

    at: int
    address: int
    registers: dict[int, int] = field(default_factory=dict)


def decode(code: bytes, start: int) -> Iterator[Reference | Slot | Call]:
    """Yields the addresses and calls in `code`, which begins at the address `start`, in their order."""
    known: dict[int, int] = {}  # what ADRP, ADR and ADD have put into registers
    usable = len(code) - len(code) % 4
    for at, (word,) in zip(range(start, start + usable, 4), struct.iter_unpack("<I", code[:usable]), strict=True):
        target, source = word & 31, word >> 5 & 31
        if word & 0x9F000000 == 0x90000000:  # ADRP
            known[target] = (at & ~PAGE) + (_signed(_page_bits(word), 21) << 12)
        elif word & 0x9F000000 == 0x10000000:  # ADR
            known[target] = at + _signed(_page_bits(word), 21)
            yield Reference(at, known[target])
        elif word & 0xFF800000 == 0x91000000:  # ADD of a constant, perhaps shifted by 12
            constant = (word >> 10 & 0xFFF) << (12 if word >> 22 & 1 else 0)
            if source not in known:
                known.pop(target, None)
                continue
            known[target] = known[source] + constant
            yield Reference(at, known[target])
        elif word & 0xFFC00000 == 0xF9400000:  # LDR of 64 bits
            if source in known:
                yield Slot(at, known[source] + (word >> 10 & 0xFFF) * 8)
            known.pop(target, None)
        elif word & 0xFFE0FFE0 == 0xAA0003E0:  # MOV between registers
            moved = known.get(word >> 16 & 31)
            known.pop(target, None)
            if moved is not None:
                known[target] = moved
        elif word & 0x7C000000 == 0x14000000:  # B and BL
            destination = at + _signed(word & 0x3FFFFFF, 26) * 4
            if word >> 31 or not start <= destination < start + len(code):
                yield Call(at, destination, known)
                known = {register: value for register, value in known.items() if register >= KEPT}


def _page_bits(word: int) -> int:
    return (word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> bits - 1 else value
