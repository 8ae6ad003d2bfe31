"""`python -m tools.apple_binary 2.15.0`: does torch's build for Apple silicon register what its operator table says?

Downloads the wheel (70 to 140 MB) once, and needs neither a Mac nor that version of torch. The exit status is 0 when
each difference has a known reason, 1 when one has none, 2 when there was nothing to compare.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from .compare import compare_wheel
from .macho import MachOError
from .wheel import WheelError, default_cache, download


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.apple_binary", description=__doc__)
    parser.add_argument("versions", nargs="+", metavar="VERSION", help="a release of torch, such as 2.15.0")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result as JSON too")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="folder for wheels (default: %(default)s)")
    arguments = parser.parse_args(argv)
    try:
        comparisons = [compare_wheel(version, download(version, arguments.cache)) for version in arguments.versions]
    except (WheelError, MachOError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    print("\n\n".join(map(str, comparisons)))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([found.to_dict() for found in comparisons], indent=1), encoding="utf-8")
    return 1 if any(comparison.unexplained for comparison in comparisons) else 0


if __name__ == "__main__":
    sys.exit(main())
