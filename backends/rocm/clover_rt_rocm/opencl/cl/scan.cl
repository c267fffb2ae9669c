// The gated delta rule over rows, one after the other: shared by block_scan and advance.
//
// 64 work-items have a column of S each, KEY float32 numbers in registers; unit k and q of CHUNK
// rows lie in local memory (KEY * CHUNK * 8 bytes). Sums over K run from 0 on in one accumulator,
// so a head's bits depend on its rows and its state alone, and rows may be split anywhere.
// KEY is at most 256; HAS_Q is 1 where there are queries.
#define CHUNK 8

typedef struct {
    global const float *k;
    global const float *v;
    global const float *g;
    global const float *beta;
    long k_step;
    long v_step;
    long gate_step;
} Rows;

// CHUNK rows of KEY numbers over sqrt(sum of squares + 1e-6) and `scale`
void stage_unit(local float *to, local float *length, global const float *from, long step, int n,
                float scale)
{
    int lid = get_local_id(0);
    for (int i = lid; i < n * KEY; i += 64)
        to[i] = from[i / KEY * step + i % KEY];
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lid < n) {
        float sum = 0.0f;
        for (int i = 0; i < KEY; i++)
            sum = fma(to[lid * KEY + i], to[lid * KEY + i], sum);
        length[lid] = sqrt(sum + 1e-6f) * scale;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = lid; i < n * KEY; i += 64)
        to[i] /= length[i / KEY];
    barrier(CLK_LOCAL_MEM_FENCE);
}

// advances column `column` of a head's memory [KEY, V] over rows; without HAS_Q nothing is read out
void scan_rows(Rows r, int rows, global const float *q, global float *o, long o_step,
               global float *memory, int V, int column, int is_kept, local float *ks,
               local float *qs, local float *length)
{
    float s[KEY];
    int live = column < V;
    for (int i = 0; i < KEY; i++)
        s[i] = live ? memory[(long)i * V + column] : 0.0f;
    for (int first = 0; first < rows; first += CHUNK) {
        int n = min(CHUNK, rows - first);
        stage_unit(ks, length, r.k + first * r.k_step, r.k_step, n, 1.0f);
        // known when this is compiled: a barrier must not hang on it
        if (HAS_Q)
            stage_unit(qs, length, q + first * r.k_step, r.k_step, n, sqrt((float)KEY));
        for (int t = 0; live && t < n; t++) {
            long row = first + t;
            float decay = exp(r.g[row * r.gate_step]), read = 0.0f;
            for (int i = 0; i < KEY; i++) {
                s[i] *= decay;
                read = fma(s[i], ks[t * KEY + i], read);
            }
            float write = r.beta[row * r.gate_step] * (r.v[row * r.v_step + column] - read);
            float out = 0.0f;
            for (int i = 0; i < KEY; i++) {
                s[i] = fma(ks[t * KEY + i], write, s[i]);
                if (HAS_Q)
                    out = fma(s[i], qs[t * KEY + i], out);
            }
            if (HAS_Q)
                o[row * o_step + column] = out;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (is_kept && live)
        for (int i = 0; i < KEY; i++)
            memory[(long)i * V + column] = s[i];
}
