"""What mkdocs calls: the site asks no other host for anything."""
import shutil
from pathlib import Path

# Where the theme would look for what old browsers lack and diagrams need; no page has diagrams.
ELSEWHERE = "https://unpkg.com/"


def on_post_build(config):
    assets = Path(config.site_dir) / "assets" / "javascripts"
    shutil.rmtree(assets / "lunr", ignore_errors=True)  # search in other languages
    for script in assets.rglob("*.js"):
        text = script.read_text(encoding="utf-8")
        if ELSEWHERE in text:
            script.write_text(text.replace(ELSEWHERE, ""), encoding="utf-8")
    for map_ in assets.parent.rglob("*.map"):
        map_.unlink()
