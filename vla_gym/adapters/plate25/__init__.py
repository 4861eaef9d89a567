"""PutOnPlateInScene25: put one of 25 objects on a plate, and the 16 runs its published evaluation consists of."""
