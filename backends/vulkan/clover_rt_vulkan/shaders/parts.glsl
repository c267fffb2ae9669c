// The columns of a group of project, and what becomes of its sums. Columns are those of the weights
// one behind the other: of w, then of `other`, which has another format.
//
// Product i has the columns from `end` of the one before on, and is the array [T, its columns] of
// y, behind those of the others. With GATES the first product is log decays and the second
// strengths.
struct Columns {
    bool is_other;
    uint first;
    uint count;
    uint start;
};

// the columns of group i, `width` from `start` on of the `count` of a part whose first is `first`
Columns columns_at(uint i, uint width)
{
    uint groups = (count + width - 1u) / width;
    if (HAS_OTHER != 0u && i >= groups)
        return Columns(true, other_first, other_count, (i - groups) * width);
    return Columns(false, first, count, i * width);
}

// writes the sum of a row and a column of all
void put(uint row, uint column, float sum)
{
    uint start = column < end0 ? 0u : column < end1 ? end0 : column < end2 ? end1 : end2;
    uint stop = column < end0 ? end0 : column < end1 ? end1 : column < end2 ? end2 : N;
    if (GATES != 0u && column < end0) {
        float x = sum + bias[bias_at + column];
        sum = rate[rate_at + column] * (max(x, 0.0) + log1p_of(exp_of(-abs(x))));
    } else if (GATES != 0u && column < end1) {
        sum = sigmoid(sum);
    }
    y[y_at + T * start + row * (stop - start) + column - start] = sum;
}
