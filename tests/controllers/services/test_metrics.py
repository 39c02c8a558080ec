from controllers.service_cluster import World, node, service
from listwatch.controllers.services.figures import (
    LoadBalancerFigures,
    ProviderFigures,
    Traffic,
)
from listwatch.controllers.services.metrics import collect, collect_load_balancers
from metric_samples import samples_of


async def test_the_metrics_have_the_fields_names_and_the_controllers_figures() -> None:
    async with World() as world:
        world.services.add(service("a"))
        await world.settle()
        world.nodes.add(node("n2"))
        await world.settle()
        samples = samples_of(collect(world.controller.statistics()))
    expected = {
        ("service_controller_loadbalancer_sync_total",): 1,
        ("service_controller_nodesync_error_total",): 0,
        ("service_controller_nodes",): 2,
        ("service_controller_load_balancers",): 1,
        ("service_controller_update_loadbalancer_host_latency_seconds_count",): 1,
    }
    assert expected.items() <= samples.items()
    buckets = "service_controller_nodesync_latency_seconds_bucket"
    assert samples[buckets, "+Inf"] >= 1
    bounds = [key[1] for key in samples if key[0] == buckets]
    assert (bounds[0], bounds[-2], bounds[-1], len(bounds)) == ("1.0", "16384.0", "+Inf", 16)


async def test_convergence_lasts_from_the_first_look_until_the_service_is_served() -> None:
    async with World() as world:
        world.provider.before = lambda _call, _service: world.clock.sleep(20)
        world.services.add(service("a"))
        await world.clock.advance(30)
        await world.clock.advance(1000)
        samples = samples_of(collect(world.controller.statistics()))
    name = "service_controller_convergence_seconds_bucket"
    assert [samples[name, bound] for bound in ("10.0", "30.0", "+Inf")] == [0, 1, 1]


def test_each_load_balancer_and_pool_has_its_figures() -> None:
    figures = ProviderFigures(
        load_balancers=[
            LoadBalancerFigures(
                namespace="shop",
                name="web",
                addresses=["192.0.2.1"],
                backends=3,
                failed_backends=1,
                traffic=Traffic(2, 10, 1, 4, 100, 200),
            )
        ],
        pools={"home": (1, 14)},
        misfits=1,
        shortages=7,
        counters={"reloads": 5},
    )
    found = {
        (name.removeprefix("service_controller_"), *labels): value
        for (name, *labels), value in samples_of(collect_load_balancers(figures)).items()
    }
    assert found == {
        ("load_balancer_connections", "shop", "web"): 2,
        ("load_balancer_backends", "shop", "web"): 3,
        ("load_balancer_failed_backends", "shop", "web"): 1,
        ("load_balancer_accepted_total", "shop", "web"): 10,
        ("load_balancer_refused_total", "shop", "web"): 1,
        ("load_balancer_failed_total", "shop", "web"): 4,
        ("load_balancer_bytes_in_total", "shop", "web"): 100,
        ("load_balancer_bytes_out_total", "shop", "web"): 200,
        ("addresses_used", "home"): 1,
        ("addresses_free", "home"): 13,
        ("addresses_misfit",): 1,
        ("provider_shortages_total",): 7,
        ("provider_reloads_total",): 5,
    }
