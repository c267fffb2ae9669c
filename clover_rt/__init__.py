"""clover-rt: the portable runtime of Clover, a text model that writes by block diffusion."""
