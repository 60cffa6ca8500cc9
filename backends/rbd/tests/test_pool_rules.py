"""What is refused in the section `pools`, and in ceph-csi's parameter for several pools."""

from __future__ import annotations

import pytest
from csi_multi_rbd import pool_rules
from csi_multi_rbd.pool_rules import OtherPool

ZONE = {"zone": "b"}


@pytest.mark.parametrize(
    ("name", "pool", "says"),
    [
        ("a/b", OtherPool(), "'a/b' is not a name for one of several pools"),
        ("x" * 64, OtherPool(), "is not a name for one of several pools: 1 to 63"),
        ("k8s", OtherPool(), "'k8s' is the instance's `pool` already; leave it out"),
        ("b", OtherPool(nodes=("b-*",)), "'nodes' of 'b' needs 'topology'"),
        ("b", OtherPool(topology=ZONE, nodes=("b-*",)), ""),
    ],
)
def test_a_pool_of_an_instance_has_a_name_for_handles_and_a_place_for_its_nodes(
    name: str, pool: OtherPool, says: str
) -> None:
    found = [one for one in pool_rules.pools_problems("k8s", {name: pool}) if one]

    assert [says in one for one in found] == [True] * bool(says), found


def test_the_parameter_of_ceph_csi_is_read_as_it_is_written() -> None:
    segments = '[{"domainLabel": "topology.kubernetes.io/zone", "value": "b"}]'
    (one,) = pool_rules.constraint(f'[{{"poolName": "b", "dataPool": "d", "domainSegments": {segments}}}]')

    assert (one.pool, one.data_pool, one.segments) == ("b", "d", ZONE)


@pytest.mark.parametrize("text", ["b", "{}", '[{"poolName": "b"}]', '[{"poolName": "", "domainSegments": []}]'])
def test_a_parameter_of_another_form_is_refused_with_the_remedy(text: str) -> None:
    assert "leave it out, since the instance has the pools" in pool_rules.constraint_problem(text)


def test_a_parameter_that_is_not_set_names_no_pool() -> None:
    assert pool_rules.constraint_problem("") == ""
    assert pool_rules.constraint("") == []
