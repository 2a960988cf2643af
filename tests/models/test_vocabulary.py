import pytest

from distill.errors import UserError
from distill.models.vocabulary import Vocabulary, shared_vocabulary

pytestmark = pytest.mark.usefixtures("no_loading")
WORDS = [f"w{index}" for index in range(200)]


@pytest.fixture
def draft(tiny, tmp_path):
    def write(words=None, special=("<user>", "<end>"), rows=256):
        made = tiny.model(vocab_size=rows)
        return tiny.write_folder(tmp_path / "draft", made, tiny.tokenizer(words, special))

    return write


@pytest.mark.parametrize("rows", [208, 256, 320])
def test_size_is_the_real_ids_whatever_the_padding(target, draft, rows):
    """VOC-PAD: heads of 256 and of `rows`, 202 tokens."""
    assert shared_vocabulary(target, None) == Vocabulary(202)
    assert shared_vocabulary(target, draft(rows=rows)) == Vocabulary(202)


def test_swapped_ids_are_refused_naming_the_first(target, draft):
    """VOC-DIFF a."""
    words = [*WORDS]
    words[40], words[90] = words[90], words[40]
    with pytest.raises(UserError, match=r"first at id 40: 'w90' where the target has 'w40'"):
        shared_vocabulary(target, draft(words))


def test_draft_extras_are_beyond_the_shared_size(target, draft):
    assert shared_vocabulary(target, draft(special=("<user>", "<end>", "<x>"))).size == 202


def test_special_target_extras_are_masked(tiny, target, draft):
    """VOC-DIFF b: <x> is special, no EOS and not in the template."""
    tiny.tokenizer(None, ("<user>", "<end>", "<x>")).save(str(target / "tokenizer.json"))
    assert shared_vocabulary(target, draft()).size == 202


@pytest.mark.parametrize(
    ("special", "eos", "why"),
    [
        (("<user>", "<end>", "<stop>"), "202", "ends the target's text"),
        (("<end>", "<user>"), "5", "is written by the target's chat template"),
    ],
)
def test_target_extras_that_generation_needs_are_refused(tiny, target, draft, special, eos, why):
    tiny.tokenizer(None, special).save(str(target / "tokenizer.json"))
    (target / "generation_config.json").write_text(f'{{"eos_token_id": {eos}}}')
    with pytest.raises(UserError, match=f"no token .*{why}"):
        shared_vocabulary(target, draft(special=special[:-1]))


def test_ordinary_target_extras_are_refused(tiny, target, draft):
    (target / "generation_config.json").write_text('{"eos_token_id": 5}')
    (target / "chat_template.jinja").unlink()
    tiny.tokenizer(None, ()).save(str(target / "tokenizer.json"))
    with pytest.raises(UserError, match=r"no token 150 \('w150'\), which is ordinary text"):
        shared_vocabulary(target, draft(WORDS[:150], ()))


def test_tokens_beyond_the_head_do_not_count(tiny, tmp_path):
    """A tokenizer that was given tokens without the head being resized."""
    folder = tiny.write_folder(tmp_path / "short", tiny.model(vocab_size=200))
    assert shared_vocabulary(folder, None).size == 200
