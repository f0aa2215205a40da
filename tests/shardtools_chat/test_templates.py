"""Where chat templates come from, and what they may do."""

import json
import pickle
from datetime import date

import pytest
from shardtools_chat.chats import chat, decoded_marked, renderer

from shardtools.masks import Renderer, RenderError
from shardtools.schemas import RowError
from shardtools.templates import ChatTemplate, known_templates
from shardtools.templates.environment import to_json
from streampipe.errors import ConfigError


def rendered(source: str, **variables: object) -> str:
    return ChatTemplate("test", source).render([{"role": "user", "content": "Q"}], variables)


def test_a_template_is_found_by_name_file_or_folder(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": [{"name": "default", "template": "old"}, {"name": "tool_use", "template": "t"}]})
    )
    folder = str(tmp_path)
    assert ChatTemplate.load(None, folder).source == "old"
    assert ChatTemplate.load("tool_use", folder).source == "t"
    (tmp_path / "chat_template.jinja").write_text("new")
    assert ChatTemplate.load(None, folder).source == "new"
    assert ChatTemplate.load(str(tmp_path / "chat_template.jinja")).source == "new"
    assert ChatTemplate.load("chatml", folder).name == "chatml"
    assert {"chatml", "alpaca", "llama-3", "internlm2"} <= set(known_templates())


@pytest.mark.parametrize(
    ("name", "message"),
    [(None, "no chat template of its own"), ("chatlm", "built in are chatml"), ("no/such.jinja", "no such chat")],
)
def test_a_template_that_is_not_there_is_an_error_that_lists_those_that_are(tmp_path, name, message):
    with pytest.raises(ConfigError, match=message):
        ChatTemplate.load(name, str(tmp_path))


def test_a_template_that_is_not_jinja_is_an_error_with_its_line(tmp_path):
    (tmp_path / "x.jinja").write_text("a\n{% if %}")
    with pytest.raises(ConfigError, match="line 2"):
        ChatTemplate.load(str(tmp_path / "x.jinja"))


def test_control_tokens_of_a_built_in_template_can_be_changed_and_misspelt_ones_are_refused(toy):
    template = ChatTemplate.load("chatml", tokens={"im_start": "<|start_header_id|>", "im_end": "<|eot_id|>"})
    made = Renderer(toy, template)
    (document,) = made.conversation(chat(("u", "Q"), ("a", "A")))
    assert decoded_marked(made, document).endswith("<|start_header_id|>assistant\n⟦A<|eot_id|>\n⟧")
    with pytest.raises(ConfigError, match="im_start, im_end"):
        ChatTemplate.load("chatml", tokens={"start": "x"})


def test_the_date_is_pinned_and_part_of_the_hash():
    source = "{{ strftime_now('%d %b %Y') }}"
    assert rendered(source) == "26 Jul 2024"
    other = ChatTemplate("test", source, today=date(2025, 1, 2))
    assert other.render([], {}) == "02 Jan 2025"
    assert other.hash != ChatTemplate("test", source).hash
    assert other.record()["today"] == "2025-01-02"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% set n = namespace(__class__=1) %}",
        "{% set n = namespace() %}{% set n.__class__ = 1 %}",
        "{{ range(10 ** 9) | list }}",
    ],
)
def test_a_template_cannot_leave_the_sandbox_or_change_what_it_sees(source):
    with pytest.raises(RowError):
        rendered(source)


def test_templates_have_what_transformers_gives_them():
    assert rendered("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert rendered("{{ x | tojson }}", x={"b": "é<&", "a": 1}) == '{"b": "é<&", "a": 1}'
    assert rendered("{{ x | tojson(indent=2) }}", x=[1]) == "[\n  1\n]"
    with pytest.raises(RowError, match="no") as caught:
        rendered("{{ raise_exception('no') }}")
    assert caught.value.reason == "template_refused"


def test_ascii_json_is_that_of_the_standard_library():
    value = {"é😀\u2028": ['\x00\\"', 'ü"']}
    assert to_json(value, ensure_ascii=True) == json.dumps(value)


def test_a_template_travels_to_another_process():
    template = ChatTemplate.load("chatml")
    assert pickle.loads(pickle.dumps(template)) == template


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("{% generation %}{{ m.content }}{% endgeneration %}", "reaches_user"),
        ("{% if m.role == 'assistant' %}{% generation %}{% endgeneration %}{% endif %}{{ m.content }}", "all_zero"),
        (
            "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}!"
            "{% else %}{{ m.content }}{% endif %}",
            "no_terminator",
        ),
    ],
)
def test_generation_blocks_that_would_teach_wrong_are_errors(toy, body, reason):
    source = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}" + body + "{{ '<|im_end|>' }}{% endfor %}"
    with pytest.raises(RenderError) as caught:
        renderer(toy, ChatTemplate("bad", source)).conversation(chat(("u", "Q"), ("a", "A"), ("u", "Q")))
    assert caught.value.reason == reason


def test_a_begin_token_written_twice_is_an_error(toy):
    source = "{{ bos_token + '<s>' }}" + known_templates()["chatml"].source.replace("{{- bos_token }}", "")
    template = ChatTemplate("twice", source, known_templates()["chatml"].tokens)
    with pytest.raises(RenderError, match="twice"):
        renderer(toy, template).conversation(chat(("u", "Q"), ("a", "A")))


@pytest.mark.parametrize(("text", "reason"), [("\ufdd0", "noncharacter"), ("\ud800", "lone_surrogate")])
def test_what_is_no_text_is_a_row_to_count(toy, text, reason):
    with pytest.raises(RowError) as caught:
        renderer(toy, "chatml").conversation(chat(("u", text), ("a", "A")))
    assert caught.value.reason == reason
