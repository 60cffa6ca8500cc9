"""The transcript in README is what a user sees: its commands are run here, and what they print is compared.

    TRANSCRIPT=write make kubernetes ARGS=tests/orchestrators/kubernetes/test_transcript.py

writes it there.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from .kubectl import Kubectl
from .versions import PROJECT

README = PROJECT / "README.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMANDS = (
    "kubectl apply -f config/try/first.yaml",
    "kubectl wait --for=condition=Ready --timeout=3m pod/first",
    "kubectl exec first -- sh -c 'echo precious > /data/file; sync'",
    "kubectl apply -f config/try/snapshot.yaml",
    "kubectl wait --for=jsonpath='{.status.readyToUse}'=true --timeout=3m volumesnapshot/first",
    "kubectl exec first -- rm /data/file",
    "kubectl apply -f config/try/restored.yaml",
    "kubectl wait --for=condition=Ready --timeout=3m pod/restored",
    "kubectl exec restored -- cat /data/file",
    "kubectl csi-multi explain --storageclass config/try/mistake.yaml",
)


def test_the_transcript_in_the_readme_is_what_its_commands_print(kubectl: Kubectl, tmp_path: Path) -> None:
    user = as_user(kubectl, tmp_path / "kubeconfig")
    text = "".join(f"$ {command}\n{printed(user, command)}" for command in COMMANDS)
    text = text.replace(kubectl.namespace, "default")

    if os.environ.get("TRANSCRIPT") == "write":
        README.write_text(BLOCK.sub(lambda _: f"```console\n{text}```", README.read_text(), count=1))
    assert BLOCK.findall(README.read_text()) == [text]


def as_user(kubectl: Kubectl, kubeconfig: Path) -> list[str]:
    """Return the words of a command that runs in the project's directory, with the test's namespace as the default."""
    *before, program = kubectl.words
    kubeconfig.write_text(kubectl("config", "view", "--raw", "--flatten"))
    plugin = f"{PROJECT}/config/kubectl"
    path = f"PATH={plugin}:{Path(program).absolute().parent}:{os.environ['PATH']}"
    user = [*before, "env", "-C", str(PROJECT), path, f"KUBECONFIG={kubeconfig}"]
    namespace = f"--namespace={kubectl.namespace}"
    subprocess.run([*user, "kubectl", "config", "set-context", "--current", namespace], capture_output=True, check=True)
    return user


def printed(user: list[str], command: str) -> str:
    """Return what a command prints, on both streams."""
    done = subprocess.run([*user, "sh", "-c", f"{command} 2>&1"], stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout if done.stdout.endswith("\n") or not done.stdout else f"{done.stdout}\n"
