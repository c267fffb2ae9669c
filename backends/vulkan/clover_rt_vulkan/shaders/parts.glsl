// What becomes of a sum of project: column `column` of the weights, which lie one behind the other.
//
// Product i has the columns from `end` of the one before on, and is the array [T, its columns] of
// y, behind those of the others. With GATES the first product is log decays and the second
// strengths.
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
