"""Finds the operators whose kernels reach a function, such as the one that looks up a compiled graph.

A function reaches those that it calls or takes the address of: blocks that are queued are passed by address. A call
through the dispatcher is another operator's, and a kernel that torch picks from a table at run time is not followed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from .macho import MachO
from .registrations import Registration

GRAPH = re.compile(r"mps13MPSGraphCache6LookUpE")
# Tensor::item() as a method, as a template for a C++ type, and as an operator.
READ = re.compile(
    r"K2at6Tensor4itemI|N2at6Tensor4itemE|_ops4item4callE|_ops19_local_scalar_dense4callE|_ops7nonzero4callE"
)

_DISPATCHED = re.compile(r"4_ops\w+4callE")
_APART = 12  # instructions between the two that compute an address


def operators_reaching(library: MachO, registered: Iterable[Registration], wanted: re.Pattern[str]) -> set[str]:
    """Returns the operators registered for MPS with a kernel that reaches a function whose symbol is `wanted`."""
    starts, names = library.functions()
    callers = _callers(library, starts)
    reached = {i for i, name in enumerate(names) if wanted.search(name)}
    to_do = list(reached)
    while to_do:
        new = {i for i in callers[to_do.pop()] if i not in reached and not _DISPATCHED.search(names[i])}
        reached |= new
        to_do += new
    kernels = {names[i] for i in reached}
    return {each.operator for each in registered if each.key == "MPS" and not kernels.isdisjoint(each.kernels)}


def _callers(library: MachO, starts: np.ndarray) -> dict[int, list[int]]:
    """Returns for each function, by its place among `starts`, the functions that call it or take its address."""
    text, words = library.text()
    at = text.address + 4 * np.arange(len(words), dtype=np.int64)
    branches = np.flatnonzero(words & 0x7C000000 == 0x14000000)  # B and BL
    found = [(at[branches], at[branches] + 4 * _signed(words[branches] & 0x3FFFFFF, 26))]
    pages = (at & ~0xFFF) + (_signed((words >> 5 & 0x7FFFF) << 2 | words >> 29 & 3, 21) << 12)
    is_adrp, target = words & 0x9F000000 == 0x90000000, words & 31
    adds = np.flatnonzero(words & 0xFFC00000 == 0x91000000)
    for apart in range(1, _APART):
        adds = adds[adds >= apart]
        pairs = is_adrp[adds - apart] & (target[adds - apart] == (words[adds] >> 5 & 31))
        here = adds[pairs]
        found.append((at[here], pages[here - apart] + (words[here] >> 10 & 0xFFF)))
        adds = adds[~pairs]
    origins, addresses = (np.concatenate(parts) for parts in zip(*found, strict=True))
    callees = np.searchsorted(starts, addresses, side="right") - 1
    exact = (callees >= 0) & (starts[callees] == addresses)
    callers = np.searchsorted(starts, origins[exact], side="right") - 1
    result = defaultdict(list)
    for pair in np.unique(callers * len(starts) + callees[exact]).tolist():
        caller, callee = divmod(pair, len(starts))
        result[callee].append(caller)
    return result


def _signed(values: np.ndarray, bits: int) -> np.ndarray:
    return np.where(values >> bits - 1, values - (1 << bits), values)
