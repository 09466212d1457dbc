"""Auto-MAP's rewards beside each other, on random graphs and on models for 8 GPUs.

On random graphs, plans are compared with the best of all sequences of decisions; on models, with
the fastest plan that the agent met. Seconds are those of the processor.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from time import process_time

import pytest
from benchmarks.planners.test_never_slower import MODELS

from pcg.machine import load_machine
from pcg.plan.training import Training
from search.cost.cost import SGD
from search.cost.progress import now
from search.planners.automap.agent import Agent
from search.planners.automap.planner import TRAINED_RANDOM, AutoMapPlanner, random_graph
from search.planners.automap.rewards import REWARDS, RewardName
from search.planners.common import PlannerSetting
from substitutions.rules.store import load_library

pytestmark = pytest.mark.benchmark

RANDOM_GRAPHS, SEEDS, EPISODES = 12, 5, 120
DEVICES = 8


def planner(reward: RewardName, devices: int, training: Training) -> AutoMapPlanner:
    machine = load_machine("dgx-a100").with_devices(devices)
    setting = PlannerSetting(machine, load_library(), training)
    return AutoMapPlanner(setting, reward=reward)


@pytest.mark.parametrize("reward", REWARDS)
def test_random_graphs(reward: RewardName):
    """The paper's reward finds fast plans on its way, though its greedy plans are slow."""
    own, greedy, fastest = planner(reward, 4, SGD), list[float](), list[float]()
    for seed in range(100, 100 + RANDOM_GRAPHS):
        _, environment = own.environment(random_graph(Random(seed), 4))
        best = min(environment.seconds(state) for state in environment.every())
        _, environment = own.environment(random_graph(Random(seed), 4))
        agent = Agent()
        agent.trained(environment, EPISODES)
        greedy.append(environment.seconds(agent.decoded(environment)) / best)
        fastest.append(environment.found[0][0] / best)
    print(
        f"{reward:9s} greedy at most {max(greedy):.3f}, {sum(greedy) / len(greedy):.3f} on average;"
        f" fastest at most {max(fastest):.3f} of the best",
        flush=True,
    )
    assert max(fastest) <= 1.1
    assert reward == "decisions" or max(greedy) <= 1.1


@pytest.mark.parametrize("name", ["mlp", "dlrm", "experts", "candle-uno"])
def test_default_reward_is_near_the_fastest(name: str):
    """With any seed, the default reward finds a plan within a tenth of the fastest of all."""
    graph, steps = MODELS[name](DEVICES), dict[str, list[float]]()
    load_library().concrete(graph)
    for reward in REWARDS:
        own, begin = planner(reward, DEVICES, Training("adam", "bf16")), process_time()
        ratios, fastest = list[float](), steps.setdefault(reward, [])
        for seed in range(SEEDS):
            seeded = replace(own, seed=seed)
            _, environment = seeded.environment(graph)
            agent = seeded.pretrained_agent(now())
            agent.trained(environment, EPISODES, TRAINED_RANDOM)
            fastest.append(environment.found[0][0])
            ratios.append(environment.seconds(agent.decoded(environment)) / fastest[-1])
        print(
            f"{name:10s} {reward:9s} fastest {min(fastest) * 1e3:.4g}, at most"
            f" {max(fastest) * 1e3:.4g} ms; greedy {sum(ratios) / SEEDS:.3f} on average,"
            f" {max(ratios):.3f} at most; {(process_time() - begin) / SEEDS:.1f} s",
            flush=True,
        )
    assert max(steps["both"]) <= 1.1 * min(map(min, steps.values()))
