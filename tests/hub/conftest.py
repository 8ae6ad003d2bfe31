from __future__ import annotations

from .fixtures import hub, hub_env, repositories

__all__ = ["hub", "hub_env", "repositories"]
