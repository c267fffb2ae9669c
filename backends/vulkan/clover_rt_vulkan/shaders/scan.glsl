// The gated delta rule over rows, one after the other: shared by block_scan and advance.
//
// A column of S is held by PARTS items of the group, KEY / PARTS float32 numbers each, in
// registers; unit k (and q, WITH_Q) of CHUNK rows lie in local memory. Sums over K have one order,
// so a head's bits depend on its rows and its state alone, and rows may be split anywhere. All of
// it is `precise`: the two shaders must not be contracted differently. The parts' sums are
// exchanged once a row: what is read out of a row is added up behind the barrier of the next.
//
// Needs `column`, and the functions key_number(row, i), query_number(row, i), value_number(row),
// log_decay(row) and strength(row) of the rows at hand, and put(row, x) for what is read out;
// with GATED, end_chunk(first, rows) too.
// Local memory: 4 KiB and CHUNK (2 CHUNK, WITH_Q) K numbers.
#ifndef CHUNK
#define CHUNK 8u
#endif
#ifdef WITH_Q
#define STAGED (2u * CHUNK)
#else
#define STAGED CHUNK
#endif
#define PARTS gl_WorkGroupSize.y
#define PART gl_LocalInvocationID.y
const uint ALL_ITEMS = gl_WorkGroupSize.x * gl_WorkGroupSize.y;
const uint QUADS = (KEY + 4u * PARTS - 1u) / (4u * PARTS);
const uint ALL_QUADS = QUADS * PARTS;
shared vec4 staged[STAGED * ALL_QUADS];
shared float squares[ALL_ITEMS];
shared float lengths[STAGED];
shared float reads[2u * ALL_ITEMS];
shared float outs[2u * ALL_ITEMS];

float staged_number(uint first, uint rows, uint which, uint i)
{
    uint row = which % CHUNK;
    if (row >= rows || i >= KEY)
        return 0.0;
#ifdef WITH_Q
    if (which >= CHUNK)
        return query_number(first + row, i);
#endif
    return key_number(first + row, i);
}

// the four numbers of a vector, added up
float sum_of_four(vec4 x)
{
    precise float sum = (x.x + x.y) + (x.z + x.w);
    return sum;
}

// rows first .. first + rows - 1 over sqrt(sum of squares + 1e-6), queries over sqrt(K) too
void stage(uint first, uint rows)
{
    for (uint i = LID; i < STAGED * ALL_QUADS; i += ALL_ITEMS) {
        uint which = i / ALL_QUADS, k = i % ALL_QUADS * 4u;
        staged[i] = vec4(
            staged_number(first, rows, which, k), staged_number(first, rows, which, k + 1u),
            staged_number(first, rows, which, k + 2u), staged_number(first, rows, which, k + 3u));
    }
    barrier();
    // the same lanes and order with and without queries
    uint lanes = ALL_ITEMS / (2u * CHUNK), own = LID / lanes;
    if (own < STAGED) {
        precise vec4 sums = vec4(0.0);
        for (uint i = LID % lanes; i < ALL_QUADS; i += lanes)
            sums = fma(staged[own * ALL_QUADS + i], staged[own * ALL_QUADS + i], sums);
        squares[LID] = sum_of_four(sums);
    }
    barrier();
    if (LID < STAGED) {
        precise float total = 1e-6;
        for (uint i = 0u; i < lanes; i++)
            total += squares[LID * lanes + i];
        precise float root = sqrt(total);
        if (LID >= CHUNK)
            root *= sqrt(float(KEY));
        lengths[LID] = root;
    }
    barrier();
    for (uint i = LID; i < STAGED * ALL_QUADS; i += ALL_ITEMS)
        staged[i] /= lengths[i / ALL_QUADS];
    barrier();
}

float reads_of(uint row)
{
    precise float sum = 0.0;
    for (uint part = 0u; part < PARTS; part++)
        sum += reads[(row % 2u) * ALL_ITEMS + part * ITEMS + gl_LocalInvocationID.x];
    return sum;
}

float outs_of(uint row)
{
    precise float sum = 0.0;
    for (uint part = 0u; part < PARTS; part++)
        sum += outs[(row % 2u) * ALL_ITEMS + part * ITEMS + gl_LocalInvocationID.x];
    return sum;
}

// where the parts cover K exactly there is nothing to ask
bool is_key(uint k)
{
    return 4u * ALL_QUADS == KEY || k < KEY;
}

// advances a column of a head's memory over rows; the column's numbers are V words apart
void scan_rows(uint rows, uint memory, bool is_kept)
{
    bool is_live = column < V;
    uint quad0 = PART * QUADS;
    vec4 s[QUADS];
    [[unroll]] for (uint i = 0u; i < QUADS; i++)
        [[unroll]] for (uint j = 0u; j < 4u; j++) {
            uint k = 4u * (quad0 + i) + j;
            s[i][j] = 0.0;
            if (is_live && is_key(k))
                s[i][j] = S[memory + k * V];
        }
    for (uint first = 0u; first < rows; first += CHUNK) {
        uint n = min(rows - first, CHUNK);
        stage(first, n);
        for (uint t = 0u; t < n; t++) {
            uint keys = t * ALL_QUADS + quad0, room = (t % 2u) * ALL_ITEMS + LID;
            precise float decay = exp_of(log_decay(first + t));
            precise vec4 sums = vec4(0.0);
            [[unroll]] for (uint i = 0u; i < QUADS; i++) {
                precise vec4 kept = s[i] * decay;
                sums = fma(kept, staged[keys + i], sums);
                s[i] = kept;
            }
            reads[room] = sum_of_four(sums);
            barrier();
#ifdef WITH_Q
            if (t > 0u && is_live && PART == 0u)
                put(first + t - 1u, outs_of(t - 1u));
#endif
            float value = is_live ? value_number(first + t) : 0.0;
            precise float write = strength(first + t) * (value - reads_of(t));
            sums = vec4(0.0);
            [[unroll]] for (uint i = 0u; i < QUADS; i++) {
                precise vec4 written = fma(staged[keys + i], vec4(write), s[i]);
                s[i] = written;
#ifdef WITH_Q
                sums = fma(written, staged[CHUNK * ALL_QUADS + keys + i], sums);
#endif
            }
#ifdef WITH_Q
            outs[room] = sum_of_four(sums);
#endif
        }
        barrier();
#ifdef WITH_Q
        if (is_live && PART == 0u)
            put(first + n - 1u, outs_of(n - 1u));
#endif
#ifdef GATED
        end_chunk(first, n);
#endif
    }
    if (is_kept && is_live)
        [[unroll]] for (uint i = 0u; i < QUADS; i++)
            [[unroll]] for (uint j = 0u; j < 4u; j++) {
                uint k = 4u * (quad0 + i) + j;
                if (is_key(k))
                    S[memory + k * V] = s[i][j];
            }
}
