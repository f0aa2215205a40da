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
        "StarCoder, arXiv 2305.06161 (PSM and SPM variant 2, half each); special_tokens_map.json of "
        "bigcode/starcoder and starcoder2",
        pad="<fim_pad>",
    ),
    "santacoder": Preset(
        "<fim-prefix>",
        "<fim-suffix>",
        "<fim-middle>",
        "SantaCoder, arXiv 2301.03988; model card of bigcode/santacoder (hyphens, not underscores)",
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
        "Qwen2.5-Coder, arXiv 2409.12186 (PSM); tokenizer_config.json of Qwen2.5 and Qwen3",
        pad="<|fim_pad|>",
    ),
    "codellama": Preset(
        "▁<PRE>",
        "▁<SUF>",
        "▁<MID>",
        "Code Llama, arXiv 2308.12950 (half PSM, half SPM variant 2); CodeLlamaTokenizer of transformers",
    ),
    "codegemma": Preset(
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        "CodeGemma, arXiv 2406.11409 (PSM and SPM); ai.google.dev, CodeGemma prompt structure",
    ),
    "seed-coder": Preset(
        "<[fim-prefix]>",
        "<[fim-suffix]>",
        "<[fim-middle]>",
        "Seed-Coder, arXiv 2506.03524 (SPM variant 1); tokenizer of ByteDance-Seed/Seed-Coder-8B-Base",
        spm=SPM_V1,
    ),
    "codestral": Preset(
        "[PREFIX]",
        "[SUFFIX]",
        None,
        "mistral-common, encode_fim: [SUFFIX] suffix [PREFIX] prefix, and no token before the middle",
        spm=["SUF", "suffix", "PRE", "prefix", "middle"],
    ),
    "glm": Preset(
        "<|code_prefix|>",
        "<|code_suffix|>",
        "<|code_middle|>",
        "tokenizer_config.json of zai-org/GLM-4.5 (PSM in its prompts)",
    ),
    "granite": Preset(
        "<fim_prefix>",
        "<fim_suffix>",
        "<fim_middle>",
        "Granite Code, arXiv 2405.04324 (PSM and SPM, rate 0.5; StarCoder's tokenizer)",
        pad="<fim_pad>",
    ),
}
