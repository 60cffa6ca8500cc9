"""The driver's jobs, as they are in config/nomad, make a plugin that Nomad calls healthy."""

from __future__ import annotations

from .nomad import Nomad


def test_controllers_and_nodes_are_healthy_on_both_clients(nomad: Nomad) -> None:
    plugin = nomad.api("plugin/csi/csi-multi")

    assert plugin["Provider"] == "multi.csi.example.com"
    assert plugin["ControllerRequired"]
    assert (plugin["ControllersHealthy"], plugin["ControllersExpected"]) == (2, 2)
    assert (plugin["NodesHealthy"], plugin["NodesExpected"]) == (2, 2)


def test_every_client_is_the_node_of_its_name(nomad: Nomad) -> None:
    for node in nomad.api("nodes"):
        plugin = nomad.api(f"node/{node['ID']}")["CSINodePlugins"]["csi-multi"]

        assert plugin["NodeInfo"]["ID"] == node["Name"]
        assert plugin["NodeInfo"]["AccessibleTopology"]["Segments"] == {"multi.csi.example.com/node": node["Name"]}
