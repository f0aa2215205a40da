"""Presets write the prompts that the families' own code and papers write; `facts` of each says which."""

import pytest

from streampipe.assemble.fim_presets import PRESETS

PROMPTS = {
    "starcoder": ("<fim_prefix>P<fim_suffix>S<fim_middle>M", "<fim_prefix><fim_suffix>S<fim_middle>PM"),
    "santacoder": ("<fim-prefix>P<fim-suffix>S<fim-middle>M", "<fim-prefix><fim-suffix>S<fim-middle>PM"),
    "deepseek": ("<｜fim▁begin｜>P<｜fim▁hole｜>S<｜fim▁end｜>M", "<｜fim▁begin｜><｜fim▁hole｜>S<｜fim▁end｜>PM"),
    "qwen2.5-coder": ("<|fim_prefix|>P<|fim_suffix|>S<|fim_middle|>M", "<|fim_prefix|><|fim_suffix|>S<|fim_middle|>PM"),
    "codellama": ("▁<PRE>P▁<SUF>S▁<MID>M", "▁<PRE>▁<SUF>S▁<MID>PM"),
    "codegemma": ("<|fim_prefix|>P<|fim_suffix|>S<|fim_middle|>M", "<|fim_prefix|><|fim_suffix|>S<|fim_middle|>PM"),
    "seed-coder": (None, "<[fim-suffix]>S<[fim-prefix]>P<[fim-middle]>M"),
    "codestral": (None, "[SUFFIX]S[PREFIX]PM"),
    "glm": ("<|code_prefix|>P<|code_suffix|>S<|code_middle|>M", "<|code_suffix|>S<|code_prefix|>P<|code_middle|>M"),
    "granite": ("<fim_prefix>P<fim_suffix>S<fim_middle>M", "<fim_prefix><fim_suffix>S<fim_middle>PM"),
}


def written(preset, template):
    texts = {"PRE": preset.prefix, "SUF": preset.suffix, "MID": preset.middle}
    texts |= {"prefix": "P", "suffix": "S", "middle": "M"}
    return "".join(texts[item] for item in template)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_writes_its_familys_prompts(name):
    preset = PRESETS[name]
    assert tuple(own and written(preset, own) for own in (preset.psm, preset.spm)) == PROMPTS[name]
