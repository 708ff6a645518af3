"""Linear heads: their loss and gradients, and how a client trains its own."""
