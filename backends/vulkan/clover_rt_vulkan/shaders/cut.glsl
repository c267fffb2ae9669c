// Which experts a block may use, from their masses: the heaviest until top_p is reached. Needs
// rank.glsl, reduce.glsl, EXPERTS, E and top_p. Local memory: 4 bytes an expert.
shared float sorted[EXPERTS];
shared uint kept;

// leaves in `kept` how many experts are kept, of `keys`, which are those of the masses and are
// there for all items; `own` is the sum of the masses of this item's experts
void cut(float own)
{
    float total = sum_of_items(own);
    for (uint e = LID; e < E; e += ITEMS)
        sorted[rank_of(E, e)] = number_of(keys[e]) / total;
    barrier();
    if (LID == 0u) {
        float before = 0.0;
        kept = 0u;
        while (kept < E && (kept == 0u || before < top_p))
            before += sorted[kept++];
    }
    barrier();
}
