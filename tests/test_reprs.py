"""What a notebook cell shows of an object: a line that says what it is, and no arrays."""

import numpy as np

import tf_pflego as pfl


def test_each_object_says_what_it_is(run_of, digits_dir):
    output = run_of("pflego")
    digits = pfl.load_dataset("digits", digits_dir)
    partition = pfl.round_robin(digits.train.labels, digits.test.labels, 20, 2, 10, seed=0)
    clients = pfl.assign_clients(digits, partition)
    model = pfl.SplitModel(pfl.mlp(clients.example_shape, seed=0), num_outputs=2)
    ditto = pfl.build_algorithm("ditto", model)
    pflego = pfl.build_algorithm("pflego", model)
    rng = np.random.default_rng(0)
    new = [(rng.integers(0, 255, (6, 8, 8, 1)).astype(np.uint8), np.arange(6) % 2)]
    new = pfl.from_arrays(new, new)
    participation = pfl.Participation(20, 10)
    with pfl.Simulation(pflego, clients, participation, engine="in_process") as simulation:
        simulation.run(1)
        running = repr(simulation)
        new_clients = repr(pfl.NewClients(simulation, new, steps=5))
    with pfl.load_run(output) as stored:
        accuracy = f"{stored.summary['test_accuracy/client_mean']:.4f}"
    simulation_is = "Simulation(pflego on 20 clients of digits, 10 per round, engine in_process, "
    objects = {
        "Dataset(digits, 1438 training and 359 test examples, uint8 [8, 8, 1], 10 classes)": digits,
        "Examples(1438 examples, uint8 [8, 8, 1])": digits.train,
        "Partition(20 clients, 1438 training and 359 test examples; per client 52 to 112 and 11 to "
        "28, of 2 classes)": partition,
        "ClientData(20 clients of digits, 1438 training and 359 test examples, uint8 [8, 8, 1], "
        "2 classes per client, local labels)": clients,
        "ClientSplit(359 examples of 20 clients, uint8 [8, 8, 1])": clients.test,
        "SplitModel(body of 13000 weights from float32 [8, 8, 1] to 200 features, heads of up to 2 "
        "classes)": model,
        "Algorithm(pflego, 1 exchange per round, serves personalized)": pflego,
        "Algorithm(ditto, 1 exchange per round, serves personalized or generic)": ditto,
        "Participation(num_clients=20, clients_per_round=10)": participation,
        f"{simulation_is}1 round done, closed)": simulation,
        f"{simulation_is}1 round done)": running,
        "NewClients(1 client of pflego, 5 steps on the head of rate auto)": new_clients,
        f"StoredRun({output}: pflego on digits, 2 rounds, ended with accuracy {accuracy})": stored,
    }
    for expected, one in objects.items():
        assert (one if isinstance(one, str) else repr(one)) == expected


def test_what_is_given_of_a_participation_makes_it_again():
    one = pfl.Participation(20, 10, "range", (3, 5), 0.1)
    assert eval(repr(one), {"Participation": pfl.Participation}) == one
