"""Training of clover-tiny: data, model in torch, objective, export. Needs no runtime."""
