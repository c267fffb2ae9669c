// Segments of the step table; needs table.glsl and `segments`.
struct Segment {
    uint kind;
    uint slot;
    uint row0;
    uint rows;
    uint position;
};

Segment segment_at(uint i)
{
    uint at = segments + 8u * i;
    return Segment(table(at), table(at + 1u), table(at + 2u), table(at + 3u), table(at + 4u));
}
