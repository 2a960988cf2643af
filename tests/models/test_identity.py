import hashlib
import json
import os

import pytest

from distill.errors import UserError
from distill.models.folder import TOKENIZER_FILES
from distill.models.identity import identify, template_sha256, tokenizer_sha256, weights_sha256
from distill.schema import TargetConfig


def test_identity_is_of_content(target, tiny, tmp_path):
    model = TargetConfig(source="folder", id="a/b", revision="v1")
    found = identify(target, model)
    stored = (target / "model.safetensors").read_bytes()
    assert (found.id, found.revision) == ("a/b", "v1")
    assert found.weights_sha256 == hashlib.sha256(stored).hexdigest()
    assert found.parameters == sum(w.numel() for w in tiny.model().parameters())
    elsewhere = tiny.write_folder(tmp_path / "copy")
    assert identify(elsewhere, model) == found


def test_shards_hash_in_the_order_of_their_names(target):
    whole = (target / "model.safetensors").read_bytes()
    (target / "a.safetensors").write_bytes(whole)
    (target / "model.safetensors").write_bytes(whole[:40])
    assert weights_sha256(target) == hashlib.sha256(whole + whole[:40]).hexdigest()


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, False),
        ({"tie_word_embeddings": True}, False),
        ({"text_config": {"rms_norm_eps": 1e-3, "dtype": "float16"}}, False),
        ({"transformers_version": "0", "_name_or_path": "/x", "dtype": "bfloat16"}, True),
        ({"torch_dtype": "float16", "text_config": {"dtype": "float16"}}, True),
    ],
)
def test_what_the_config_computes_is_part_of_a_model(target, change, same):
    path, model = target / "config.json", TargetConfig(source="folder", id="x")
    written = json.loads(path.read_text()) | {"text_config": {}}
    path.write_text(json.dumps(written))
    before = identify(target, model)
    reordered = dict(reversed([*(written | change).items()]))
    path.write_text(json.dumps(reordered, indent=1))
    after = identify(target, model)
    assert (after.sha256 == before.sha256) is same
    assert after.weights_sha256 == before.weights_sha256


def test_mode_flags_and_template_are_in_the_template_hash(target):
    plain = template_sha256(target, {})
    assert template_sha256(target, {"enable_thinking": False}) != plain
    (target / "chat_template.jinja").write_text("other")
    assert template_sha256(target, {}) != plain


def test_known_weights_are_not_read_again(target, tmp_path):
    first = weights_sha256(target, tmp_path / "cache")
    file = target / "model.safetensors"
    stamp = file.stat().st_mtime_ns
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(file, ns=(stamp, stamp))
    assert weights_sha256(target, tmp_path / "cache") == first
    os.utime(file, ns=(stamp, stamp + 1))
    assert weights_sha256(target, tmp_path / "cache") != first


def test_torn_weights_are_named(target):
    (target / "model.safetensors").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{")
    with pytest.raises(UserError, match="not a whole safetensors file"):
        identify(target, TargetConfig(source="folder", id="x"))


@pytest.mark.parametrize("name", [n for n in TOKENIZER_FILES if not n.startswith("chat_template")])
def test_every_file_of_the_tokenizer_counts(target, name):
    before = tokenizer_sha256(target)
    found = (target / name).read_text() if (target / name).exists() else "{}"
    (target / name).write_text(
        found.replace("{", '{"unknown": 1, ' if len(found) > 2 else "{\n", 1)
    )
    assert tokenizer_sha256(target) != before


def test_who_wrote_the_tokenizer_and_its_template_do_not_count(target):
    path, before = target / "tokenizer_config.json", tokenizer_sha256(target)
    settings = json.loads(path.read_text())
    by = {"transformers_version": "0", "name_or_path": "/x", "chat_template": "other"}
    path.write_text(json.dumps(dict(reversed([*(settings | by).items()])), indent=3))
    (target / "chat_template.jinja").write_text("other")
    assert tokenizer_sha256(target) == before
    path.write_text(json.dumps(settings | {"eos_token": "<user>"}))
    assert tokenizer_sha256(target) != before


def test_flags_are_told_in_words(target):
    model = TargetConfig(source="folder", id="x", chat_template_kwargs={"b": "c", "a": False})
    assert identify(target, model).template_flags == 'a=false, b="c"'
