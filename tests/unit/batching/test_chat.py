"""Conversations: what a template makes of them, and which tokens of it are learnt."""

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.batching.chat.chat_encoding import encode_record
from epochal.batching.chat.conversations import MAX_MESSAGES, conversation_of
from epochal.batching.chat.templates import BUILT_IN, CHATML, ChatTemplate
from epochal.data_providers.protocol import IGNORED_LABEL, CorruptData, Tokens
from epochal.state.errors import InvalidInput
from tests.support.heavy import need_module

UNMARKED = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Bye"},
    {"role": "assistant", "content": "See you"},
]
texts = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters=[chr(one) for one in range(0xFDD0, 0xFDF0)]),
    max_size=12,
)
talks = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": texts}), max_size=5
).map(lambda head: [*head, {"role": "assistant", "content": "end"}])


@pytest.fixture(autouse=True)
def _templates() -> None:
    need_module("jinja2")


class Bytes:
    """Each byte of UTF-8 is a token."""

    def encode_placed(self, text: str) -> tuple[Tokens, npt.NDArray[np.int64]]:
        sizes = [len(character.encode()) for character in text]
        return np.frombuffer(text.encode(), np.uint8).astype("<u2"), np.repeat(np.arange(len(text)), sizes)


def learnt_of(template: ChatTemplate, record: Any, learn: Any = "assistant") -> list[str]:
    rendered = template.render(conversation_of(record, learn))
    return [rendered.text[start:stop] for start, stop in rendered.learnt]


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_templates_learn_what_the_assistant_says_and_its_end(name: str) -> None:
    end = "<|im_end|>" if name == "chatml" else "</s>"
    template = ChatTemplate(BUILT_IN[name], name, {"eos_token": "</s>"})
    assert learnt_of(template, {"messages": TALK}) == ["Hello" + end, "See you" + end]
    assert learnt_of(template, {"messages": TALK}, "last") == ["See you" + end]


def test_prompt_and_completion_are_texts_or_messages() -> None:
    template = ChatTemplate(UNMARKED, "unmarked", {"eos_token": "."})
    assert learnt_of(template, {"prompt": "1 + 1?", "completion": "2"}) == ["2."]
    assert learnt_of(template, {"prompt": TALK[:3], "completion": TALK[3:]}) == ["See you."]
    joined = ChatTemplate(BUILT_IN["none"], "none").render(conversation_of({"prompt": "a b", "completion": " c"}))
    assert (joined.text, joined.learnt) == ("a b c", ((3, 5),))


def test_message_of_weight_0_is_not_learnt() -> None:
    talk = [*TALK[:2], {**TALK[2], "weight": 0}, *TALK[3:]]
    for source in (CHATML, UNMARKED):
        (found,) = learnt_of(ChatTemplate(source, "one"), {"messages": talk})
        assert found.startswith("See you")


@given(talk=talks)
def test_marked_and_compared_templates_learn_the_same(talk: list[dict[str, str]]) -> None:
    marked = UNMARKED.replace(
        "{{ m.content }}{{ eos_token }}",
        "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}"
        "{% else %}{{ m.content }}{{ eos_token }}{% endif %}",
    )
    conversation = conversation_of({"messages": talk})
    found = [ChatTemplate(source, "t", {"eos_token": "."}).render(conversation) for source in (UNMARKED, marked)]
    assert found[0] == found[1]


@given(talk=talks)
def test_labels_are_the_tokens_of_what_is_learnt_and_nothing_else(talk: list[dict[str, str]]) -> None:
    template = ChatTemplate(CHATML, "chatml")
    rendered = template.render(conversation_of({"messages": talk}))
    sample = encode_record({"messages": talk}, template, Bytes())
    assert sample.labels is not None
    kept = sample.labels != IGNORED_LABEL
    assert (sample.labels[kept] == sample.input_ids[kept]).all()
    assert bytes(sample.input_ids.astype(np.uint8)) == rendered.text.encode()
    expected = b"".join(rendered.text[start:stop].encode() for start, stop in rendered.learnt)
    assert bytes(sample.input_ids[kept].astype(np.uint8)) == expected


def test_token_across_the_edge_of_what_is_learnt_is_not_learnt() -> None:
    class Pairs:
        def encode_placed(self, text: str) -> tuple[Tokens, npt.NDArray[np.int64]]:
            return np.arange(len(text) // 2).astype("<u2"), np.arange(0, len(text) - 1, 2)

    template = ChatTemplate(BUILT_IN["none"], "none")
    sample = encode_record({"prompt": "abc", "completion": "defgh"}, template, Pairs())
    assert sample.labels is not None
    assert sample.labels.tolist() == [IGNORED_LABEL, IGNORED_LABEL, 2, 3]


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ([], "a record of list; allowed: messages; or prompt and completion"),
        ({"text": "a"}, "a record of text; allowed"),
        ({"messages": []}, "messages is an empty list; allowed: a list of one or more messages"),
        ({"messages": ["hi"]}, "messages[0] is 'hi'; allowed: an object with role and content"),
        ({"messages": [{"content": "a"}]}, "messages[0].role is missing"),
        ({"messages": [{"role": "user"}]}, "messages[0].content is missing"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content is null; allowed: a text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "content[0] is a part whose type is 'image'",
        ),
        ({"messages": TALK[:2]}, "no message of the assistant's is to be learnt"),
        ({"messages": [{**TALK[2], "weight": 2}]}, "messages[0].weight is 2; allowed: 0 or 1"),
        ({"prompt": "a", "completion": 1}, "completion is 1; allowed"),
        ({"messages": TALK, "tools": "x"}, "tools is 'x'; allowed: a list"),
        ({"messages": TALK * MAX_MESSAGES}, f"at most {MAX_MESSAGES}"),
    ],
)
def test_record_that_is_no_conversation_is_refused_by_its_field(record: Any, said: str) -> None:
    with pytest.raises(CorruptData) as caught:
        conversation_of(record)
    assert said in caught.value.message


def test_text_parts_are_joined_and_tool_calls_need_no_content() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "look"}]}
    found = conversation_of({"messages": [{"role": "user", "content": parts}, call], "tools": [{"name": "look"}]})
    assert [message["content"] for message in found.messages] == ["ab", ""]
    shown = ChatTemplate("{{ tools | tojson }}{{ messages[1].tool_calls | tojson }}{{ 'ü<' | tojson }}", "tools")
    assert shown._text(found, found.messages) == '[{"name": "look"}][{"name": "look"}]"ü<"'


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ raise_exception('only one turn') }}", "chat template t: TemplateError: only one turn"),
        ("{{ messages | length }}", "writes messages[2] otherwise"),
        ("{% generation %}{% endgeneration %}", "made 1 generation blocks of 2 messages"),
        (
            "{% generation %}{% generation %}{% endgeneration %}{% endgeneration %}",
            "has a generation block within another",
        ),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
    ],
)
def test_template_that_cannot_say_what_is_learnt_is_refused(source: str, said: str) -> None:
    with pytest.raises(CorruptData) as caught:
        ChatTemplate(source, "t").render(conversation_of({"messages": TALK}))
    assert said in caught.value.message


def test_template_that_is_no_template_is_refused_by_its_line() -> None:
    with pytest.raises(InvalidInput, match="chat template mine, line 2: "):
        ChatTemplate("{{ 1 }}\n{% for %}", "mine")


def test_text_with_the_marks_of_a_template_is_refused() -> None:
    talk = [{"role": "user", "content": "\ufdd0"}, TALK[2]]
    with pytest.raises(CorruptData, match=r"messages\[0\] has U\+FDD0"):
        ChatTemplate(CHATML, "chatml").render(conversation_of({"messages": talk}))
    with pytest.raises(CorruptData, match=r"messages\[0\] has U\+FDD1"):
        ChatTemplate(CHATML, "chatml").render(conversation_of({"messages": [{**TALK[0], "role": "\ufdd1"}, TALK[2]]}))


def test_markers_are_what_a_template_writes_in_angles_and_bars() -> None:
    assert ChatTemplate(CHATML, "chatml").markers == {"<|im_start|>", "<|im_end|>"}
    assert ChatTemplate("<｜User｜>{{ 1 }}<|a b|><||>", "other").markers == {"<｜User｜>"}
    assert [ChatTemplate(BUILT_IN[name], name).markers for name in ("plain", "none")] == [frozenset()] * 2


def test_text_and_labels_are_those_of_transformers() -> None:
    need_module("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {character: number for number, character in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    theirs = Tokenizer(models.BPE(vocabulary, []))
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast = PreTrainedTokenizerFast(tokenizer_object=theirs, eos_token="!")
    for source in BUILT_IN.values():
        encoded = fast.apply_chat_template(
            TALK, chat_template=source, return_dict=True, return_assistant_tokens_mask=True, tokenize=True
        )
        template = ChatTemplate(source, "same", {"eos_token": "!"})
        sample = encode_record({"messages": TALK}, template, Bytes())
        assert (
            fast.apply_chat_template(TALK, chat_template=source, tokenize=False)
            == template.render(conversation_of({"messages": TALK})).text
        )
        assert sample.labels is not None
        assert encoded["assistant_masks"] == (sample.labels != IGNORED_LABEL).astype(int).tolist(), json.dumps(source)
