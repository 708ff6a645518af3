"""PFLEGO's exchanges, carried by Flower between a server and devices."""
