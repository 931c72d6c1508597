"""The spellings of tool output between which recorded Sparks and releases of iproute2 differ."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Dialect:
    """One way to spell; the first value that a comment names is the default."""

    iproute2: str = "6"  # 6: handles as "0x…" strings; 5: as numbers
    protocol: str = "bracket"  # bracket: "[34997]"; plain: "88b5"; hex: "0x88b5"
    mask: str = "preserved"  # preserved: the bits that pedit keeps; written: those that it sets
    values: str = "hex"  # hex: pedit's values as strings of digits; int: as numbers
    optional: str = "yes"  # no: members that not every release has are absent
    split: str = "no"  # yes: sw_bytes and hw_bytes, as in newer iproute2
    devlink: str = "int"  # int: values of parameters as numbers; str: as strings
    errors: str = "recorded"  # recorded: as noted from Sparks; kernel: as measured on kernel 6.18

    @classmethod
    def parse(cls, text: str) -> Dialect:
        """From `iproute2=5,protocol=plain`, by commas or blanks; a TypeError for an unknown name."""
        pairs = [word.partition("=") for word in text.replace(",", " ").split()]
        return cls(**{name: value for name, _, value in pairs})
