import json
import shlex

import yaml

from distill.serving import eagle3, transformers, vllm
from distill.serving.model_card import render

NUMBERS = {
    "num_draft_tokens": 2,
    "alpha": 0.4123,
    "alpha_low": 0.4,
    "alpha_high": 0.42,
    "speedup": 1.2,
    "train_tokens": 1234567,
    "tokens_per_pass": None,
    "verdict": "ship",
}


def card(**changed):
    arguments = {
        "name": "draft",
        "target_id": "someone/target-1B",
        "dtype": "bfloat16",
        "description": transformers.DESCRIPTION,
        "serve": transformers.serve,
        "numbers": NUMBERS,
        "measurement": {"sampling": {"temperature": 1.0, "top_k": None}, "k": [1, 2]},
        "lineage": {"target weights sha256": "0123"},
    }
    return render(**arguments | changed)


def front_matter(text):
    return yaml.safe_load(text.split("---")[1])


def test_front_matter_claims_no_licence():
    assert front_matter(card()) == {
        "base_model": "someone/target-1B",
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["speculative-decoding", "draft-model"],
    }


def test_measured_numbers_with_their_intervals_and_no_others():
    text = card()
    assert "| 0.412 | 0.400 to 0.420 |" in text
    assert "| 1.200 |  |" in text
    assert "1,234,567" in text
    assert "Tokens per target pass" not in text
    assert "**Verdict: ship.**" in text
    assert "- sampling: temperature 1.0, top_k none\n- k: 1, 2\n" in text
    assert "- target weights sha256: 0123" in text


def test_an_unmeasured_draft_claims_nothing():
    text = card(numbers={"num_draft_tokens": 1})
    assert "not measured" in text
    assert "How it was measured" not in text
    assert "\n\n\n" not in text


def test_a_local_path_is_not_published(tmp_path):
    place = str(tmp_path / "my-target")
    lineage = {"target": place, "more": [place]}
    text = card(target_id=place, lineage=lineage, measurement={"in": {"x": place}})
    assert str(tmp_path) not in text
    assert "- target: my-target\n" in text
    assert "vllm serve my-target" in text
    assert "base_model" not in front_matter(text)


def test_the_vllm_command_is_one_shell_line_with_valid_json():
    words = shlex.split(vllm.command("a/b", "it's here", 4))
    assert words[:4] == ["vllm", "serve", "a/b", "--speculative-config"]
    assert json.loads(words[4]) == {
        "method": "draft_model",
        "model": "it's here",
        "num_speculative_tokens": 4,
    }
    assert vllm.command("someone/target-1B", "./draft", 2) in card()


def test_a_heads_card_names_each_engines_own_option():
    text = card(description=eagle3.DESCRIPTION, serve=eagle3.serve)
    assert "EAGLE-3 head that reads the hidden states of `someone/target-1B`" in text
    assert '"method":"eagle3"' in text
    assert "--speculative-algorithm EAGLE3" in text
    assert "--spec-type draft-eagle3" in text
    assert "have not been run here" in text
