"""What a stage's fingerprint holds of the configuration is said where a key is declared."""

from dataclasses import dataclass, field

from distill.content import content, deciding


@dataclass
class Group:
    rate: float = 0.5
    names: list[str] = field(default_factory=lambda: ["a"])
    packing: bool = deciding("train", default=False)
    every_seconds: float = deciding(default=60.0)
    decode: float = 0.0
    decode_prompts: int = deciding("train", default=4, only_with="decode")


def test_a_key_decides_every_stage_that_reads_its_group_unless_it_says_otherwise():
    assert content(Group(), "prepare") == {"rate": 0.5, "names": ["a"], "decode": 0.0}
    assert content(Group(), "train") == content(Group(), "prepare") | {"packing": False}


def test_a_key_of_what_is_switched_off_decides_nothing():
    assert content(Group(decode=0.1), "train")["decode_prompts"] == 4
    assert "decode_prompts" not in content(Group(decode=0.1), "prepare")
