// The R experts of a row and their weights: the largest of `keys`, NO_KEY for experts that it may
// not have. Needs rank.glsl, CHOICES, E, R, `logits`, `ids`, `weights` and their starts.
#define NONE 0xffffffffu
shared uint chosen[CHOICES];

// called by all items; `keys` need not be there yet for the others
void route(uint row)
{
    uint own = logits_at + row * E;
    for (uint r = LID; r < R; r += ITEMS)
        chosen[r] = NONE;
    barrier();
    for (uint e = LID; e < E; e += ITEMS) {
        if (keys[e] == NO_KEY)
            continue;
        uint rank = rank_of(E, e);
        if (rank < R)
            chosen[rank] = e;
    }
    barrier();
    for (uint r = LID; r < R; r += ITEMS) {
        float peak = chosen[0] == NONE ? MINUS_INFINITY : logits[own + chosen[0]];
        float share = 0.0, total = 0.0;
        bool has_nan = false;
        for (uint i = 0u; i < R && chosen[i] != NONE; i++) {
            float logit = logits[own + chosen[i]];
            float e = is_minus_infinity(peak) ? 0.0 : exp_of(logit - peak);
            has_nan = has_nan || is_nan(logit);
            total += e;
            share = i == r ? e : share;
        }
        float weight = total == 0.0 ? 0.0 : share / total;
        if (has_nan)
            weight = A_NAN;
        ids[ids_at + row * R + r] = int(chosen[r]);
        weights[weights_at + row * R + r] = chosen[r] == NONE ? 0.0 : weight;
    }
}
