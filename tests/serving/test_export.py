import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from distill.errors import UserError
from distill.models.draft import load_draft, save_draft
from distill.models.folder import TOKENIZER_FILES
from distill.models.target import load_target
from distill.serving import export, transformers
from distill.serving.export import export_draft
from distill.serving.transformers import ExportError
from tests.serving.conftest import EOS

NUMBERS = {"num_draft_tokens": 3, "alpha": 0.4, "speedup": 1.25, "verdict": "ship"}
PROMPTS = [[256, 10, 20, 30], [256, 40], [5, 6, 7, 8, 9, 10, 11]]


def exported(champion, target, destination, **changed):
    arguments = {
        "target_id": "someone/target",
        "target_folder": target,
        "numbers": NUMBERS,
        "measurement": {"prompts": 16},
        "lineage": {"git commit": "abc"},
        "dtype": "bfloat16",
    }
    return export_draft(champion, destination, **arguments | changed)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_reloading_gives_the_champions_logits_in_that_type(champion, target, tmp_path, dtype):
    folder = exported(champion, target, tmp_path / "draft", dtype=dtype)
    tensors = load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {getattr(torch, dtype)}
    ids = torch.tensor(PROMPTS[2:])
    written = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    expected = load_draft(champion, dtype=getattr(torch, dtype), device="cpu")
    with torch.inference_mode():
        assert torch.equal(written(ids).logits, expected(ids).logits)


def test_what_the_folder_takes_from_the_target(champion, target, tmp_path):
    folder = exported(champion, target, tmp_path / "draft")
    for name in TOKENIZER_FILES:
        if (target / name).exists():
            assert (folder / name).read_bytes() == (target / name).read_bytes()
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [257, 258]
    messages = [{"role": "user", "content": "hi"}]
    ours, theirs = (AutoTokenizer.from_pretrained(place) for place in (folder, target))
    assert ours.apply_chat_template(messages) == theirs.apply_chat_template(messages)


@pytest.mark.parametrize("threshold", [None, 0.0, 0.3])
def test_transformers_drafts_as_was_measured(champion, target, tmp_path, threshold):
    numbers = NUMBERS if threshold is None else NUMBERS | {"confidence_threshold": threshold}
    folder = exported(champion, target, tmp_path / "draft", numbers=numbers)
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation["num_assistant_tokens"] == 3
    assert generation["num_assistant_tokens_schedule"] == "constant"
    assert generation["assistant_confidence_threshold"] == (threshold or 0.0)
    card = (folder / "README.md").read_text()
    assert ("round ends behind a drafted token less likely than | 0.30" in card) == bool(threshold)


def test_greedy_with_the_exported_draft_is_the_targets_own_greedy(champion, target, tmp_path):
    folder = exported(champion, target, tmp_path / "draft")
    proof = proven(folder, target, max_new_tokens=24)
    assert proof.identical
    assert (proof.prompts, proof.engine, proof.dtype) == (3, "transformers", "float32")
    assert proof.tokens > 0


def test_a_proof_runs_in_the_targets_own_dtype_and_classifies_what_rounding_does(
    champion, target, tmp_path
):
    """No second copy in float32; no difference in half precision is called a failure unseen."""
    folder = exported(champion, target, tmp_path / "draft")
    proof = proven(folder, target, torch.bfloat16, prompts=PROMPTS * 4, max_new_tokens=60)
    assert (proof.dtype, proof.unexplained) == ("bfloat16", 0)
    assert proof.identical is (proof.near_ties == 0)


@pytest.mark.parametrize("champion", [True], indirect=True)
def test_an_output_that_parts_where_no_two_tokens_are_alike_is_unexplained(
    champion, target, tmp_path, monkeypatch
):
    folder = exported(champion, target, tmp_path / "draft")
    continued = transformers._continued

    def wrong(model, prompt, draft=None):
        tokens = continued(model, prompt, draft)
        return tokens if draft is None else [(tokens[0] + 1) % 250, *tokens[1:]]

    monkeypatch.setattr(transformers, "_continued", wrong)
    proof = proven(folder, target, torch.bfloat16, max_new_tokens=24)
    assert (proof.identical, proof.near_ties, proof.unexplained) == (False, 0, 3)


@pytest.mark.parametrize("champion", [True], indirect=True)
def test_a_proof_stays_within_the_context(champion, target, tmp_path):
    folder = exported(champion, target, tmp_path / "draft")
    proof = proven(folder, target, prompts=[[7, 8, 9] * 80 + [5] * 15], max_new_tokens=32)
    assert proof.identical  # 255 tokens of a context of 256: only its first 224 are read


@pytest.mark.parametrize("champion", [True], indirect=True)
def test_how_the_target_samples_is_no_setting_of_the_draft_and_nothing_warns(
    champion, target, tmp_path, caplog
):
    """A draft that came with a temperature would draft by it, whatever its caller asked for."""
    sampling = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.1}
    own = tmp_path / "own"
    shutil.copytree(target, own)
    settings = {"eos_token_id": EOS, "pad_token_id": 258, "_from_model_config": True, **sampling}
    (own / "generation_config.json").write_text(json.dumps(settings))
    save_draft(load_draft(champion, dtype=torch.float32, device="cpu"), tmp_path / "drafts", own)
    folder = exported(tmp_path / "drafts", own, tmp_path / "draft")
    written = json.loads((folder / "generation_config.json").read_text())
    assert not sampling.keys() & written.keys()
    assert (written["eos_token_id"], written["pad_token_id"]) == (EOS, 258)
    model = load_target(own, dtype=torch.float32, device="cpu")
    before = model.generation_config
    with caplog.at_level("WARNING"):
        proof = transformers.prove(folder, target=model, eos_token_ids=EOS, prompts=PROMPTS)
    assert proof.identical
    assert model.generation_config is before
    assert caplog.records == []


def proven(folder, target, dtype=torch.float32, prompts=PROMPTS, **settings):
    model = load_target(target, dtype=dtype, device="cpu")
    return transformers.prove(folder, target=model, eos_token_ids=EOS, prompts=prompts, **settings)


def test_the_folder_alone_makes_transformers_draft_k_tokens(target, tmp_path):
    """The target as its own draft: 12 tokens are then 3 passes of k + 1 = 4."""
    folder = exported(target, target, tmp_path / "draft", dtype="float32")
    model = AutoModelForCausalLM.from_pretrained(target)
    draft = AutoModelForCausalLM.from_pretrained(folder)
    passes = []
    model.register_forward_hook(lambda *_: passes.append(1))
    ids = torch.tensor(PROMPTS[:1])
    settings = {"max_new_tokens": 12, "min_new_tokens": 12, "pad_token_id": 257}
    model.generate(ids, assistant_model=draft, do_sample=False, **settings)
    assert len(passes) == 3


def test_an_export_is_replaced_whole_and_nothing_is_left_beside_it(champion, target, tmp_path):
    place = tmp_path / "out"
    exported(champion, target, place / "draft")
    (place / "draft" / "stale.txt").touch()
    exported(champion, target, place / "draft")
    assert [path.name for path in place.iterdir()] == ["draft"]
    assert not (place / "draft" / "stale.txt").exists()


def test_a_failed_check_exports_nothing_and_keeps_the_last_one(
    champion, target, tmp_path, monkeypatch
):
    folder = exported(champion, target, tmp_path / "draft")
    before = (folder / "model.safetensors").read_bytes()

    def spoil(champion, destination, **arguments):
        real_write(champion, destination, **arguments)
        path = destination / "model.safetensors"
        tensors = load_file(path)
        tensors["model.norm.weight"] += 1
        save_file(tensors, path, {"format": "pt"})

    real_write = transformers.write
    monkeypatch.setattr(export.transformers, "write", spoil)
    with pytest.raises(ExportError, match="logits"):
        exported(champion, target, folder)
    assert (folder / "model.safetensors").read_bytes() == before


def test_another_tokenizer_is_noticed(champion, target, tmp_path):
    folder = exported(champion, target, tmp_path / "draft")
    other = tmp_path / "other"
    shutil.copytree(target, other)
    (other / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ExportError, match="byte for byte"):
        transformers.check(folder, champion, other, dtype=torch.bfloat16)


@pytest.mark.parametrize("champion", [False], indirect=True)
def test_untied_weights_under_a_tied_config_are_refused(champion, target, tmp_path):
    config = json.loads((champion / "config.json").read_text())
    (champion / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    with pytest.raises(UserError, match="tie_word_embeddings"):
        exported(champion, target, tmp_path / "draft")
    assert not (tmp_path / "draft").exists()


@pytest.mark.parametrize("champion", [True], indirect=True)
def test_weights_too_large_for_the_type_are_refused(champion, target, tmp_path):
    path = champion / "model.safetensors"
    tensors = load_file(path)
    tensors["model.norm.weight"] *= 1e6
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(UserError, match=r"export\.dtype=bfloat16"):
        exported(champion, target, tmp_path / "draft", dtype="float16")


def test_bad_requests_name_the_remedy(champion, target, tmp_path):
    with pytest.raises(UserError, match="bfloat16, float16, float32"):
        exported(champion, target, tmp_path / "draft", dtype="int8")
    with pytest.raises(UserError, match="no exported draft"):
        exported(champion, target, tmp_path)


@pytest.mark.parametrize("champion", [True], indirect=True)
def test_the_cards_transformers_snippet_runs(champion, target, tmp_path, monkeypatch, capsys):
    folder = exported(champion, target, tmp_path / "draft")
    monkeypatch.chdir(tmp_path)
    exec(transformers.command(str(target), f"./{folder.name}", 3), {})
    assert capsys.readouterr().out
