// Walks the register tiles of a matrix product; every ISA's file says which tile it wants. Everything
// is static: each translation unit gets its own copy, under its own flags.
#pragma once
#include <cstddef>
#include <cstdint>

#include "linear.h"

namespace octavo {
namespace {

// One tile: rows row .. row + T - 1 of the activations against consecutive panels.
struct TileArgs {
  const PackedMatrix* matrix;
  const uint8_t* panel;
  const ActRows* acts;
  int row;
  float* out;
  int64_t ldo;
};

using TileFn = void (*)(const TileArgs&);

// Panels side by side and the most activation rows of a tile.
struct TileShape {
  int panels;
  int rows;
};

// From this many rows on a tile computes for longer than its weights take to arrive, and the
// hardware prefetcher, which sees a panel end every few tiles, falls behind: the next panels are
// asked for by hand while the present ones are used (9 % at 32 rows, 1 to 2 % at 128). With fewer
// rows the weights are one ascending stream, which it reads best alone.
constexpr int kPrefetchRows = 8;
constexpr size_t kCacheLine = 64;

// Bytes to bring into L2, a share with every tile.
class Ahead {
 public:
  Ahead(const uint8_t* at, size_t bytes, int tiles)
      : at_(at), end_(at + bytes), share_((bytes / tiles + kCacheLine) / kCacheLine * kCacheLine) {}
  void fetch_share() {
    const size_t left = static_cast<size_t>(end_ - at_);
    const uint8_t* stop = at_ + (left < share_ ? left : share_);
    for (; at_ < stop; at_ += kCacheLine) __builtin_prefetch(at_, 0, 2);
    at_ = stop;
  }

 private:
  const uint8_t* at_;
  const uint8_t* end_;
  size_t share_;
};

// The largest number of rows when m rows are split evenly into tiles of at most `most`.
inline int even_rows(int m, int most) {
  const int tiles = (m + most - 1) / most;
  return (m + tiles - 1) / tiles;
}

// shape_of(panels left) gives a TileShape, tile_of(panels, rows) the function. Rows are split
// evenly: 17 rows in tiles of at most 16 run as 9 + 8.
template <class ShapeOf, class TileOf>
inline void run_tiles(const PackedMatrix& w, int panel, int panels, const ActRows& acts, int row0,
                      int m, float* out, int64_t ldo, ShapeOf shape_of, TileOf tile_of) {
  for (int p = 0; p < panels;) {
    const TileShape shape = shape_of(panels - p);
    const int next = panel + p + shape.panels;
    const uint8_t* data = w.data + static_cast<size_t>(panel + p) * w.panel_stride;
    const int tiles = (m + shape.rows - 1) / shape.rows;
    const int ahead = next + shape.panels <= w.panels ? shape.panels : w.panels - next;
    Ahead weights(w.data + static_cast<size_t>(next) * w.panel_stride,
                  m >= kPrefetchRows ? static_cast<size_t>(ahead) * w.panel_stride : 0, tiles);
    int row = 0;
    for (int left = tiles; left > 0; --left) {
      const int rows = (m - row + left - 1) / left;
      weights.fetch_share();
      const TileArgs args = {&w, data, &acts, row0 + row, out + row * ldo + p * kLanes, ldo};
      tile_of(shape.panels, rows)(args);
      row += rows;
    }
    p += shape.panels;
  }
}

}  // namespace
}  // namespace octavo
