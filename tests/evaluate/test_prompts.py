"""Prompts over domains, and turns that continue the target's own answers."""

from distill.data.chat import UnusableChatError
from distill.evaluate.prompts import Conversation, spread, unroll
from distill.evaluate.records import Prompt


def talk(name: str, domain: str = "chat", follow_ups=()) -> Conversation:
    messages = [{"role": "user", "content": name}]
    return Conversation(name, domain, [len(name)], messages, follow_ups)


def test_domains_share_the_prompts_evenly() -> None:
    many = [talk(f"c{i}") for i in range(9)] + [talk("m0", "math"), talk("q0", "qa")]
    assert [one.id for one in spread(many, 6)] == ["c0", "m0", "q0", "c1", "c2", "c3"]
    assert len(spread(many, 100)) == 11
    assert spread(many[::-1], 3)[0].domain == "chat"


def render(messages) -> list[int]:
    return [len(message["content"]) for message in messages]


def test_later_turns_hold_the_answers_to_the_earlier_ones() -> None:
    asked: list[list[str]] = []

    def answer(prompts: list[Prompt]) -> list[str]:
        asked.append([f"{prompt.id}{prompt.turn}" for prompt in prompts])
        return ["x" * (7 + prompt.turn) for prompt in prompts]

    found = unroll([talk("a", follow_ups=("bb", "ccc")), talk("zz")], answer, render, context=50)
    assert found.prompts == [
        Prompt("a", "chat", [1]),
        Prompt("zz", "chat", [2]),
        Prompt("a", "chat", [1, 7, 2], turn=1),
        Prompt("a", "chat", [1, 7, 2, 8, 3], turn=2),
    ]
    assert asked == [["a0"], ["a1"]]  # only where something follows
    assert found.too_long == 0


def test_a_conversation_ends_where_the_context_is_full() -> None:
    found = unroll(
        [talk("a", follow_ups=("b", "c", "d"))], lambda prompts: ["x"], render, context=5
    )
    assert [prompt.turn for prompt in found.prompts] == [0, 1]
    assert found.too_long == 2


def test_a_conversation_ends_where_the_template_refuses_it() -> None:
    def strict(messages) -> list[int]:
        if "?" in messages[-1]["content"]:
            raise UnusableChatError("no questions")
        return render(messages)

    talks = [talk("a", follow_ups=("b", "c?", "d")), talk("e", follow_ups=("f?", "g"))]
    found = unroll(talks, lambda prompts: ["x"] * len(prompts), strict, context=50)
    assert [(prompt.id, prompt.turn) for prompt in found.prompts] == [("a", 0), ("e", 0), ("a", 1)]
    assert found.unusable == {"no questions": 4}
