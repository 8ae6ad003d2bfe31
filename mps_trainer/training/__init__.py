"""The Trainer and the parts it is made of."""

from .trainer import Trainer

__all__ = ["Trainer"]
