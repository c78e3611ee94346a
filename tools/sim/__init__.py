"""The simulator: real cores with simulated disks, network, clocks, faults and clients, all drawn from one seed."""
