"""`helm test`: it passes on this cluster, and takes away what it made, also after a failure."""

from __future__ import annotations

from .conftest import Helm, volumes_of
from .driver_pods import driver_pods
from .kubectl import Kubectl


def test_every_class_is_written_restored_compared_and_removed(helm: Helm, kubectl: Kubectl) -> None:
    driver = driver_pods(kubectl)

    done = helm("test", "csi-multi", "--timeout=300s")

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Succeeded") >= 3, done.stdout
    assert left(driver) == ""
    driver.until("its PVs gone", lambda: not volumes_of(driver))


def test_a_failure_is_told_and_leaves_nothing(helm: Helm, kubectl: Kubectl) -> None:
    driver = driver_pods(kubectl)

    done = helm("test", "csi-multi", "--timeout=1s")

    assert done.returncode == 1, "nothing can be tested in one second"
    driver.until("its pods gone", lambda: not left(driver))
    driver.until("its PVs gone", lambda: not volumes_of(driver))


def left(driver: Kubectl) -> str:
    return driver("get", "pod,volumesnapshot", "-l", "app.kubernetes.io/component=test", "-o", "name")
