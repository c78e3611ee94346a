"""A cluster in a box: real cores, simulated disks, network, clocks, faults and clients, all drawn from one seed."""
