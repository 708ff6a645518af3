"""Tries out whether a private run hides a client as well as it claims.

Some rounds of the run are repeated, in process, with the same settings and another secret, each
with and without noise. This shows its noise, its bound and its sampling (see
`aggregation.inspection`), and epsilon is recomputed from the run's counts. Then the whole run is
repeated with added canary clients, which upload random directions. The number of canaries that are
recognised in the releases gives a lower bound on epsilon.

If the claim does not match, the program exits with code 4. A clean audit does not prove the claim.
"""

import dataclasses

from tf_pflego.aggregation import canaries, inspection, private
from tf_pflego.core.settings import setting
from tf_pflego.program import flags, terminal
from tf_pflego.program.failures import RefutedError
from tf_pflego.program.run_options import StoredRunOptions
from tf_pflego.runs import build as build_lib
from tf_pflego.runs.plan import Plan
from tf_pflego.runs.stored_run import StoredRun
from tf_pflego.simulation.records import EPSILON
from tf_pflego.simulation.simulation import Simulation
from tf_pflego.system import texts
from tf_pflego.system.signals import Interruption

USAGE = "--run=DIR [--NAME=VALUE ...]"
EXAMPLE = "--run=runs/private --canaries=500"
_SEED = 0  # of the directions


@dataclasses.dataclass(frozen=True)
class Options(StoredRunOptions):
    """Which run is tried, and how."""

    canaries: int = setting(200, "clients that upload random directions", at_least=1)
    confidence: float = setting(0.95, "confidence of the lower bound on epsilon", above=0, below=1)

    def __post_init__(self):
        super().__post_init__()
        self.refuse_empty("run")


def run(flag_values, interruption: Interruption) -> None:
    """Inspects some rounds, trains with canaries, and shows the claim and the findings."""
    options = flags.options_from(Options, flag_values)
    with options.opened() as stored:
        if not stored.run_config.is_private:
            raise ValueError(
                f"`run` must be a run with differential privacy; {stored.path} has none. Give one "
                "that was trained with `dp_epsilon` or `dp_noise_multiplier`."
            )
        clients = stored.clients.part(
            0, stored.clients.num_clients - stored.run_config.num_new_clients
        )
        plan = stored.planned(clients, engine="in_process", num_new_clients=0, num_eval_clients=0)
        delta = stored.run_config.dp_delta
        claimed, num_rounds, faults = _of_ledger(stored)
        terminal.show(f"epsilon claimed      {claimed:.3f}, delta {delta:g}, {num_rounds} rounds")
        terminal.doing(f"looking into {inspection.NOISE_ROUNDS} rounds")
        faults += _seen_inside(stored, plan)
        if not faults:
            terminal.show("looked inside        noise, bound and draws are as claimed")
        interruption.check()
        with _with_canaries(plan, options.canaries) as simulation:
            for number in range(1, num_rounds + 1):
                terminal.doing(f"round {number} of {num_rounds}, with canaries")
                simulation.run_round()
                interruption.check()
            scores = canaries.scores(simulation.server_state, options.canaries, _SEED)
    bound, recognised = canaries.lower_bound(scores, delta, options.confidence)
    counted = f"{recognised} of {texts.counted(options.canaries, 'canary', 'canaries')} recognised"
    terminal.show(
        f"epsilon at least     {bound:.3f}, confidence {100 * options.confidence:g} %, {counted}"
    )
    if bound > claimed:
        faults.append(f"epsilon is at least {bound:.3f}, as canaries show")
    if faults:
        raise RefutedError(
            f"a private run must be as it claims, with an epsilon of {claimed:.3f}; got: "
            f"{'; '.join(faults)}. Do not rely on this claim."
        )
    terminal.show("The claim is not refuted; only the accounting can show that it holds.")


def _of_ledger(stored: StoredRun) -> tuple[float, int, list[str]]:
    """Returns the claim, the number of rounds, and contradictions in the run's counts."""
    last = {name: values[-1] for name, values in stored.metrics.items()}
    claimed, num_rounds = float(last[EPSILON]), int(last["round"])
    count, accountant = int(last["privacy_releases"]), _accountant(stored, num_rounds)
    epsilon = accountant.epsilon(count)
    faults = []
    if count < num_rounds * accountant.releases_per_round:
        faults.append(f"only {count} sums were counted in {num_rounds} rounds")
    # Another version of dp-accounting may round otherwise.
    if epsilon > claimed * 1.01:
        faults.append(
            f"{count} sums with a noise multiplier of {accountant.noise_multiplier:.4g} have an "
            f"epsilon of {epsilon:.3f}"
        )
    return claimed, num_rounds, faults


def _accountant(stored, num_rounds):
    """Returns the accountant of a run, with the noise multiplier that it has used."""
    config = stored.run_config
    used = float(stored.metrics["privacy_noise_multiplier"][-1])
    rounds = int(stored.metrics["round"][-1])
    claim = private.claimed(config) | {"num_rounds": num_rounds}
    claim |= {"epsilon": None, "noise_multiplier": used}
    exchanges = round(stored.metrics["privacy_releases"][-1] / rounds)
    drawn = config.participation_of(stored.clients.num_clients - config.num_new_clients)
    return private.accountant_of(drawn, exchanges, **claim)


def _seen_inside(stored, plan) -> list[str]:
    """Returns the contradictions in a few rounds of the same run with another secret."""
    inside, method = [], plan.method

    def build(model, settings):
        inside.append(inspection.Inspected(method.build(model, settings)))
        return inside[-1].algorithm

    # Under a name of its own it shares no traces with the method.
    looked_at = dataclasses.replace(method, name=f"{method.name}, inspected", build=build)
    with build_lib.simulation_of(dataclasses.replace(plan, method=looked_at)) as simulation:
        accountant = _accountant(stored, plan.settings.num_rounds)
        begun = simulation.server_state.wrapper[0].noise_multiplier
        accountant = dataclasses.replace(accountant, noise_multiplier=float(begun))
        return list(inspection.faults(simulation, inside[-1], accountant))


def _with_canaries(plan: Plan, number: int) -> Simulation:
    """Returns the simulation of a run's clients and of canaries, with the same share per round."""
    assert plan.clients is not None
    clients = everybody = dataclasses.replace(plan.clients, client_names=None)
    num_all, method = clients.num_clients + number, plan.method
    while everybody.num_clients < num_all:  # Canaries have copies of the clients' data.
        left = num_all - everybody.num_clients
        everybody = everybody.joined_by(clients.part(0, min(left, clients.num_clients)))
    per_round = plan.settings.most_per_round(clients.num_clients) * num_all / clients.num_clients
    planted = dataclasses.replace(
        method,
        name=f"{method.name}, with canaries",
        build=lambda model, settings: canaries.planted(
            method.build(model, settings), clients.num_clients, _SEED
        ),
    )
    plan = plan.but(clients_per_round=round(per_round))
    return build_lib.simulation_of(dataclasses.replace(plan, method=planted, clients=everybody))
