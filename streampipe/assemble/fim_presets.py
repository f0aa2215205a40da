"""Sentinels of model families by name, and where each fact comes from."""

from dataclasses import dataclass

from streampipe.assemble.fim_config import Template

PSM: Template = ["PRE", "prefix", "SUF", "suffix", "MID", "middle"]
SPM: Template = ["PRE", "SUF", "suffix", "MID", "prefix", "middle"]  # the paper's variant 2
SPM_V1: Template = ["SUF", "suffix", "PRE", "prefix", "MID", "middle"]
ORDERS: dict[str, Template] = {"psm": PSM, "spm": SPM, "spmv1": SPM_V1}


@dataclass(frozen=True)
class Preset:
    """The sentinels of a family.

    Attributes:
        prefix, suffix, middle: names of the tokens; no middle where the family has none.
        facts: where they come from.
        psm, spm: the orders that the family was trained with, where they are not the usual ones; None for one that it
            does not know.
        pad: name of the token that fills windows up with `compat: megatron`; None where the family has none.
    """

    prefix: str
    suffix: str
    middle: str | None
    facts: str
    psm: Template | None = None
    spm: Template | None = None
    pad: str | None = None

    def __post_init__(self) -> None:
        if self.psm is None and self.spm is None:
            object.__setattr__(self, "psm", PSM)
            object.__setattr__(self, "spm", SPM)


PRESETS: dict[str, Preset] = {
    "starcoder": Preset(
        "<fim_prefix>",
        "<fim_suffix>",
        "<fim_middle>",
        "StarCoder, arXiv 2305.06161; bigcode-project/Megatron-LM, which trained it (megatron/tokenizer/tokenizer.py "
        "has the names, permute in megatron/data/gpt_dataset.py PSM and SPM variant 2, half each); StarCoder2 likewise",
        pad="<fim_pad>",
    ),
    "santacoder": Preset(
        "<fim-prefix>",
        "<fim-suffix>",
        "<fim-middle>",
        "SantaCoder, arXiv 2301.03988; model card of bigcode/santacoder (hyphens, not underscores); trained by the "
        "code of bigcode-project/Megatron-LM, so PSM and SPM variant 2, half each",
        pad="<fim-pad>",
    ),
    "deepseek": Preset(
        "<｜fim▁begin｜>",
        "<｜fim▁hole｜>",
        "<｜fim▁end｜>",
        "DeepSeek-Coder, arXiv 2401.14196 (PSM; begin prefix hole suffix end middle); README of "
        "deepseek-ai/DeepSeek-Coder; the same tokens in DeepSeek-V3's tokenizer.json (arXiv 2412.19437)",
    ),
    "qwen2.5-coder": Preset(
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        "Qwen2.5-Coder, arXiv 2409.12186 (PSM); README of QwenLM/Qwen2.5-Coder; tokenizer.json of Qwen3",
        pad="<|fim_pad|>",
    ),
    "codellama": Preset(
        "▁<PRE>",
        "▁<SUF>",
        "▁<MID>",
        "Code Llama, arXiv 2308.12950 (half PSM, half SPM variant 2); infilling_prompt_tokens in llama/generation.py "
        "of meta-llama/codellama, names in llama/tokenizer.py",
    ),
    "codegemma": Preset(
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        "CodeGemma, arXiv 2406.11409 (PSM and SPM, of which variant is not said); ai.google.dev, CodeGemma prompt "
        "structure (the names, PSM)",
    ),
    "seed-coder": Preset(
        "<[fim-prefix]>",
        "<[fim-suffix]>",
        "<[fim-middle]>",
        "Seed-Coder, arXiv 2506.03524, section 2.2.6 (the names; SPM variant 1 only, cut at characters)",
        spm=SPM_V1,
    ),
    "codestral": Preset(
        "[PREFIX]",
        "[SUFFIX]",
        None,
        "mistral-common, encode_fim: [SUFFIX] suffix [PREFIX] prefix, and no token before the middle ([MIDDLE] is in "
        "the vocabulary, unused)",
        spm=["SUF", "suffix", "PRE", "prefix", "middle"],
    ),
    "glm": Preset(
        "<|code_prefix|>",
        "<|code_suffix|>",
        "<|code_middle|>",
        "names: GLM-4.5 in llama.cpp, src/llama-vocab.cpp; SPM variant 1: guides/Infilling_guideline.md of "
        "zai-org/CodeGeeX4, the only prompts that its makers give; PSM: what editors send to GLM-4.5",
        psm=PSM,
        spm=SPM_V1,
    ),
    "granite": Preset(
        "<fim_prefix>",
        "<fim_suffix>",
        "<fim_middle>",
        "Granite Code, arXiv 2405.04324 (PSM and SPM, rate 0.5; StarCoder's tokenizer; names in llama.cpp, "
        "src/llama-vocab.cpp)",
        pad="<fim_pad>",
    ),
}
