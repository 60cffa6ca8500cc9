"""What ceph-csi has and this driver does not: refused by its name."""

from __future__ import annotations

import pytest
from csi_multi_rbd.config import Parameters
from csi_multi_rbd.refused_parameters import UNSUPPORTED

from csi_multi.contract import InvalidArgument
from csi_multi.contract.params import parse


@pytest.mark.parametrize("key", UNSUPPORTED)
def test_everything_unsupported_is_refused_by_its_name(key: str) -> None:
    with pytest.raises(InvalidArgument, match=f"'{key}': "):
        parse(Parameters, {key: "x"}, "parameters")
