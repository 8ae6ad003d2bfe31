"""The fields of `TrainingArguments`, one dataclass per subject, and what makes their values right.

To add an argument: add the field to the group it belongs to, with its choices or bounds if not every value of its
type is acceptable. `TrainingArguments` inherits all groups from `groups.py`, so nothing else has to change.
"""
