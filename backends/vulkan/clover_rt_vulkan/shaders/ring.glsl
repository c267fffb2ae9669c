// The ring of a slot: the last J - 1 raw rows before the next one. Needs RAW, the buffer of a pass's
// raw rows, raw_start() their first word in it, `ring` and its start, C and J.

// moves a channel's last J - 1 numbers of ring and commit into the ring
void move_ring(Segment s, uint channel)
{
    uint own = ring_at + s.slot * (J - 1u) * C + channel;
    // row j comes from a later one, which is not yet overwritten
    for (uint j = 0u; j < J - 1u; j++) {
        uint from = j + s.rows;
        if (from < J - 1u)
            ring[own + j * C] = ring[own + from * C];
        else
            ring[own + j * C] = RAW[raw_start() + (s.row0 + from - (J - 1u)) * C + channel];
    }
}
