// Sizes of work units. None of them changes a result.
#pragma once
#include <cstddef>

namespace octavo {

// Activation rows of one unit of a matrix product: 128 rows of 1536 int8 columns are 192 KiB, which
// leaves room for the weight panel in a 1 MiB L2.
constexpr int kRowBlock = 128;
// Up to this many rows every thread norms all of them itself: about 0.3 us a row of 576 columns,
// against about 0.5 us for one more phase.
constexpr int kRedundantRows = 2;
// Rows of one unit of a shared norm: about 5 us of work.
constexpr int kNormRows = 16;
// Panels of one unit of an output or down projection, for steps of few rows and of many. A unit of
// one panel and 128 rows of 1536 columns takes about 20 us; with one row, two panels of 15 KiB take
// about a microsecond.
constexpr int kAddLinearPanels = 2;
// Columns of gate and of up in one unit; a multiple of 32 (the activation group) and of 16.
constexpr int kGluColumns = 64;
// Panels of one unit of the head: 16 panels of 576 columns are about 150 KiB of weights, 5 us.
constexpr int kHeadPanels = 16;
// Logit rows in flight: 64 rows of 49,152 floats are 12 MiB.
constexpr int kLogitRows = 64;
// Query rows of one attention tile.
constexpr int kAttentionRows = 16;
// A tile is cut along its context where a step has fewer units of attention than this a thread: the
// last unit to finish is then a small share of the phase, and a stalled thread holds little.
constexpr int kAttentionUnits = 8;
// Most rows of different sequences in one unit of a split they share. With a query group of 3 or 4
// these are 24 or 32 queries, enough to use what is loaded of K and V many times over; more would
// leave too few units to share evenly.
constexpr int kMergedRows = 8;
// Most splits of such a unit: every further one saves preparing the queries again, 1.5 % of a step of
// 32 sequences over a prefix of 1,024.
constexpr int kMergedSplits = 2;
// Floats of partial results a step may use (4 MiB), if that holds one row at the longest context.
constexpr size_t kPartialFloats = size_t{1} << 20;

}  // namespace octavo
