"""The quickstart of the README does what it says."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(\w+) quickstart ?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_quickstart_runs_from_top_to_bottom_in_an_empty_folder(tmp_path: Path) -> None:
    paths = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    environment = {**os.environ, "PATH": os.pathsep.join(paths)}
    blocks = BLOCK.findall((ROOT / "README.md").read_text())
    assert [language for language, _, _ in blocks] == ["bash", "yaml", "python", "bash"]
    for language, name, text in blocks:
        if name:
            (tmp_path / name).write_text(text)
        words = {"bash": ["bash", "-euo", "pipefail", "-c", text], "python": [sys.executable, name], "yaml": ["true"]}
        done = subprocess.run(
            words[language], check=False, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
