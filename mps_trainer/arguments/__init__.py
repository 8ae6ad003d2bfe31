"""Defines the fields of `TrainingArguments`, one dataclass per subject, and checks their values.

To add an argument: add the field to the group it belongs to, with its choices or bounds if not every value of its
type is acceptable. `TrainingArguments` inherits all groups, so nothing else has to change.
"""
