// Walks the register tiles of a matrix product; every ISA's file says which tile it wants. Everything
// is static: each translation unit gets its own copy, under its own flags.
#pragma once
#include <cstddef>
#include <cstdint>

#include "linear.h"

namespace octavo {
namespace {

constexpr size_t kCacheLine = 64;

// What a tile asks for of the panels that come next: so many cache lines, into L2, with each step
// of its loop.
struct Ahead {
  const uint8_t* at;
  int lines;
};

// One tile: rows row .. row + T - 1 of the activations against consecutive panels.
struct TileArgs {
  const PackedMatrix* matrix;
  const uint8_t* panel;
  const ActRows* acts;
  int row;
  float* out;
  int64_t ldo;
  Ahead ahead;
};

using TileFn = void (*)(const TileArgs&);

// Panels side by side and the most activation rows of a tile.
struct TileShape {
  int panels;
  int rows;
};

// From so many rows on a tile computes for longer than its weights take to arrive. The hardware
// prefetcher, which sees a panel end every few tiles, then falls behind: the next panels are asked for
// by hand. With fewer rows the weights are one ascending stream, which it reads best alone.
//
// At the start of each tile: 9 % at 32 rows, 1 to 2 % at 128. With few rows
// such a burst holds up the sums behind it.
constexpr int kPrefetchRows = 8;
// A few lines with every block of a quantized tile instead. AVX-512, one thread, Q8_0
// from memory: 1.2 to 2 times the rate at 5 to 8 rows. Narrower tiles ask at their start, as AVX2
// loses 5 % this way (Q4_1).
constexpr int kBlockPrefetchRows = 4;

// The lines of the next panels, dealt out evenly to the tiles over the present ones.
class AheadShares {
 public:
  AheadShares(const uint8_t* at, size_t bytes, int tiles, int steps)
      : at_(at), left_((bytes + kCacheLine - 1) / kCacheLine) {
    const size_t turns = static_cast<size_t>(tiles) * static_cast<size_t>(steps);
    lines_ = (left_ + turns - 1) / turns;
    share_ = lines_ * static_cast<size_t>(steps);
  }
  Ahead next() {
    const Ahead out = {at_, left_ > 0 ? static_cast<int>(lines_) : 0};
    at_ += share_ * kCacheLine;
    left_ -= left_ < share_ ? left_ : share_;
    return out;
  }

 private:
  const uint8_t* at_;
  size_t left_;
  size_t lines_;  // of a step
  size_t share_;  // of a tile
};

// The largest number of rows when m rows are split evenly into tiles of at most `most`.
inline int even_rows(int m, int most) {
  const int tiles = (m + most - 1) / most;
  return (m + tiles - 1) / tiles;
}

// shape_of(panels left) gives a TileShape, tile_of(panels, rows) the function. Rows are split
// evenly: 17 rows in tiles of at most 16 run as 9 + 8. kByBlock: the tiles fetch a step of `ahead`
// with every block of 32 columns; else the driver fetches all of it before each tile.
template <bool kByBlock = false, class ShapeOf, class TileOf>
inline void run_tiles(const PackedMatrix& w, int panel, int panels, const ActRows& acts, int row0,
                      int m, float* out, int64_t ldo, ShapeOf shape_of, TileOf tile_of) {
  const bool prefetch = m >= (kByBlock ? kBlockPrefetchRows : kPrefetchRows);
  const int steps = kByBlock ? w.k / kQuantGroup : 1;
  for (int p = 0; p < panels;) {
    const TileShape shape = shape_of(panels - p);
    const int next = panel + p + shape.panels;
    const uint8_t* data = w.data + static_cast<size_t>(panel + p) * w.panel_stride;
    const int tiles = (m + shape.rows - 1) / shape.rows;
    const int after = next + shape.panels <= w.panels ? shape.panels : w.panels - next;
    AheadShares shares(w.data + static_cast<size_t>(next) * w.panel_stride,
                       prefetch ? static_cast<size_t>(after) * w.panel_stride : 0, tiles, steps);
    int row = 0;
    for (int left = tiles; left > 0; --left) {
      const int rows = (m - row + left - 1) / left;
      const TileArgs args = {&w,  data, &acts, row0 + row, out + row * ldo + p * kLanes,
                             ldo, shares.next()};
      if (!kByBlock) {
        for (int i = 0; i < args.ahead.lines; ++i) {
          __builtin_prefetch(args.ahead.at + static_cast<size_t>(i) * kCacheLine, 0, 2);
        }
      }
      tile_of(shape.panels, rows)(args);
      row += rows;
    }
    p += shape.panels;
  }
}

}  // namespace
}  // namespace octavo
