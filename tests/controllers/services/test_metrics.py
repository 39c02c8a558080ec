from controllers.service_cluster import World, node, service
from listwatch.controllers.services.metrics import collect


async def test_the_metrics_have_the_fields_names_and_the_controllers_figures() -> None:
    async with World() as world:
        world.services.add(service("a"))
        await world.settle()
        world.nodes.add(node("n2"))
        await world.settle()
        samples = {
            (sample.name, sample.labels.get("le", "")): sample.value
            for family in collect(world.controller.statistics())
            for sample in family.samples
        }
    assert samples["service_controller_loadbalancer_sync_total", ""] == 1
    assert samples["service_controller_nodesync_error_total", ""] == 0
    assert samples["service_controller_nodes", ""] == 2
    assert samples["service_controller_load_balancers", ""] == 1
    assert samples["service_controller_update_loadbalancer_host_latency_seconds_count", ""] == 1
    assert samples["service_controller_nodesync_latency_seconds_bucket", "+Inf"] >= 1
