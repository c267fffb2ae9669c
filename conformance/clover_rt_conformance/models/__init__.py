"""Trials of whole tiny models against the golden data.

`golden`     the checkpoints, arrays, runs and requests
`binding`    plans over them on a device
`exact`      golden arrays, runs and sweeps in `exact`
`rounded`    layer by layer and teacher-forced, in any precision
`walk`       the float64 reference of a whole model
`placement`  the same runs with some ops on the host
"""
