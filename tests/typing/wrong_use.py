"""Wrong uses, one per line that ends in the error that mypy must find there. It is not run."""

import tf_pflego as pfl

_ = pfl.federation  # attr-defined
pfl.RunConfig(num_rounds="ten")  # arg-type
pfl.RunConfig(rounds=10)  # call-arg
pfl.Participation("all", 2)  # arg-type
pfl.load_run("runs/digits").metrics()  # operator
pfl.mlp(28, seed=0)  # arg-type
pfl.load_run("runs/digits").simulation().client_model(3, "own", "other")  # call-arg
pfl.Experiment("pflego", seeds="all")  # arg-type
pfl.sweep("fedavg", "runs/fair")  # arg-type
