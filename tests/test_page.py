"""What every page has: text is only text, and its own scripts alone run."""

import base64
import hashlib
import json
import re
import subprocess
import sys
import zipfile
from html import unescape
from pathlib import Path

from plotly.graph_objects import Figure, Scatter

from transformer_jax import page

EVIL = "</script><script>alert(1)</script><!-- <b>\"'&amp;"
ROOT = Path(__file__).parents[1]


def test_text_is_escaped_wherever_it_stands() -> None:
    body = page.table(EVIL, [EVIL, "b"], [[EVIL, EVIL]]) + page.paragraph(EVIL)
    figure = Figure([Scatter(x=[1], y=[2], text=[EVIL])])
    text = page.make_page(EVIL, body, {"one": figure}, data=[EVIL])
    assert "alert(1)</script>" not in text
    assert text.count(EVIL) == 0
    found = dict(re.findall(r'<script type="application/json" id="(\w+)">(.*?)</script>', text))
    assert json.loads(found["data"]) == [EVIL]
    assert json.loads(found["figures"])["one"]["data"][0]["text"] == [EVIL]
    outside = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert "<b>" not in outside and unescape(outside).count(EVIL) == 8


def test_the_policy_lets_the_page_run_its_own_scripts_alone() -> None:
    text = page.make_page("page", "", {})
    policy = unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1])
    scripts = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    hashes = {base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts}
    assert set(re.findall(r"'sha256-([^']*)'", policy)) == hashes and len(scripts) == 1
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "script-src 'unsafe" not in policy and "http" not in policy


def test_an_installed_package_has_the_scripts_and_styles(tmp_path: Path) -> None:
    names = "LICENSE README.md pyproject.toml setup.cfg transformer_jax"
    subprocess.run(["cp", "-r", *names.split(), str(tmp_path)], cwd=ROOT, check=True)
    command = "pip wheel --quiet --no-deps --no-build-isolation --wheel-dir wheels ."
    subprocess.run([sys.executable, "-m", *command.split()], cwd=tmp_path, check=True)
    (wheel,) = (tmp_path / "wheels").iterdir()
    held = set(zipfile.ZipFile(wheel).namelist())
    assets = {
        f"transformer_jax/{path.name}" for path in (ROOT / "transformer_jax").glob("*.[cj]s*")
    }
    assert "transformer_jax/page.js" in assets and assets <= held
