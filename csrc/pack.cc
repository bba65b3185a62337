// Lossless repacking of stored rows into 16-row panels, and reading one row back.
#include <cmath>
#include <cstring>

#include "float_convert.h"
#include "linear.h"

namespace octavo {
namespace {

uint16_t load_u16(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}

uint32_t load_u32(const uint8_t* p) {
  uint32_t v;
  std::memcpy(&v, p, 4);
  return v;
}

struct SourceInfo {
  int block;  // columns
  int bytes;  // of a block
  Layout layout;
  ScaleType scale;
};

// Block sizes are those of the GGUF specification.
constexpr SourceInfo kSources[] = {
    {1, 4, Layout::kF32, ScaleType::kNone},       // F32
    {2, 4, Layout::kBF16, ScaleType::kNone},      // BF16: columns are stored in pairs
    {32, 18, Layout::kQ4, ScaleType::kF16},       // Q4_0: d, 16 bytes of nibbles
    {32, 20, Layout::kQ4M, ScaleType::kF16},      // Q4_1: d, m, nibbles
    {32, 22, Layout::kQ8, ScaleType::kF16},       // Q5_0: d, 4 bytes of fifth bits, nibbles
    {32, 24, Layout::kQ8M, ScaleType::kF16},      // Q5_1: d, m, fifth bits, nibbles
    {32, 34, Layout::kQ8, ScaleType::kF16},       // Q8_0: d, 32 signed bytes
    {256, 144, Layout::kQ4M, ScaleType::kF32},    // Q4_K: d, dmin, 12 bytes of scales, nibbles
    {256, 176, Layout::kQ8M, ScaleType::kF32},    // Q5_K: the same and 32 bytes of fifth bits
    {32, 20, Layout::kQ4, ScaleType::kF32},       // INT4: d as f32, nibbles
    {32, 24, Layout::kQ4M, ScaleType::kF32},      // INT4_MIN: d, m as f32, nibbles
    {32, 36, Layout::kQ8, ScaleType::kF32},       // INT8: d as f32, 32 signed bytes
    {32, 40, Layout::kQ8M, ScaleType::kF32},      // INT8_MIN: d, m as f32, 32 unsigned bytes
};
static_assert(sizeof(kSources) / sizeof(kSources[0]) == static_cast<size_t>(QuantType::kCount));

const SourceInfo& info_of(QuantType type) { return kSources[static_cast<int>(type)]; }

size_t payload_bytes(Layout layout) {
  return (layout == Layout::kQ4 || layout == Layout::kQ4M) ? 256 : 512;
}

bool has_min(Layout layout) { return layout == Layout::kQ4M || layout == Layout::kQ8M; }

size_t scale_bytes(ScaleType scale) { return scale == ScaleType::kF16 ? 2 : 4; }

// One row's 32 columns: unsigned codes as the layout wants them, and the scales as stored there.
struct Block32 {
  uint8_t q[kQuantGroup];
  uint16_t d16, m16;
  float d32, m32;
};

void read_q5(const uint8_t* fifth, const uint8_t* nibbles, int offset, Block32* out) {
  const uint32_t bits = load_u32(fifth);
  for (int i = 0; i < 16; ++i) {
    const int low = (nibbles[i] & 0x0F) | (((bits >> i) & 1u) << 4);
    const int high = (nibbles[i] >> 4) | (((bits >> (i + 16)) & 1u) << 4);
    out->q[i] = static_cast<uint8_t>(low + offset);
    out->q[i + 16] = static_cast<uint8_t>(high + offset);
  }
}

// Sub-block `sub` of a K-quant super-block: d * scale and -(dmin * min) have at most 17 significant
// bits, so both are exact in float32.
void read_k_scales(const uint8_t* block, int sub, Block32* out) {
  const uint8_t* s = block + 4;
  int scale, min;
  if (sub < 4) {
    scale = s[sub] & 63;
    min = s[sub + 4] & 63;
  } else {
    scale = (s[sub + 4] & 0x0F) | ((s[sub - 4] >> 6) << 4);
    min = (s[sub + 4] >> 4) | ((s[sub] >> 6) << 4);
  }
  out->d32 = f16_to_f32(load_u16(block)) * static_cast<float>(scale);
  out->m32 = -(f16_to_f32(load_u16(block + 2)) * static_cast<float>(min));
}

// f32 scales, then codes; `flip` turns the sign bit of signed ones, which adds 128.
void read_int(const SourceInfo& info, int flip, const uint8_t* block, Block32* out) {
  std::memcpy(&out->d32, block, 4);
  const uint8_t* codes = block + 4;
  if (has_min(info.layout)) {
    std::memcpy(&out->m32, codes, 4);
    codes += 4;
  }
  if (payload_bytes(info.layout) == 512) {
    for (int i = 0; i < kQuantGroup; ++i) out->q[i] = static_cast<uint8_t>(codes[i] ^ flip);
    return;
  }
  for (int i = 0; i < 16; ++i) {
    out->q[i] = codes[i] & 0x0F;
    out->q[i + 16] = codes[i] >> 4;
  }
}

void read_block(QuantType type, const uint8_t* row, int b, Block32* out) {
  const SourceInfo& info = info_of(type);
  const int per_source = info.block / kQuantGroup;
  const uint8_t* block = row + static_cast<size_t>(b / per_source) * info.bytes;
  const int sub = b % per_source;
  switch (type) {
    case QuantType::kQ5_0:
      out->d16 = load_u16(block);
      read_q5(block + 2, block + 6, 128 - 16, out);
      return;
    case QuantType::kQ5_1:
      out->d16 = load_u16(block);
      out->m16 = load_u16(block + 2);
      read_q5(block + 4, block + 8, 0, out);
      return;
    case QuantType::kQ4_K:
    case QuantType::kQ5_K: {
      read_k_scales(block, sub, out);
      const bool five = type == QuantType::kQ5_K;
      const uint8_t* fifth = block + 16;
      const uint8_t* nibbles = block + (five ? 48 : 16) + 32 * (sub / 2);
      for (int i = 0; i < kQuantGroup; ++i) {
        int q = (sub % 2) ? nibbles[i] >> 4 : nibbles[i] & 0x0F;
        if (five) q |= ((fifth[i] >> sub) & 1) << 4;
        out->q[i] = static_cast<uint8_t>(q);
      }
      return;
    }
    case QuantType::kInt4:
    case QuantType::kInt4Min:
    case QuantType::kInt8:
    case QuantType::kInt8Min:
      read_int(info, type == QuantType::kInt8 ? 0x80 : 0, block, out);
      return;
    default:
      return;  // Q4_0, Q4_1, Q8_0 have direct paths
  }
}

void store_scales(const Block32& s, const PackedMatrix& w, int lane, uint8_t* scales) {
  if (w.scale == ScaleType::kF16) {
    std::memcpy(scales + 2 * lane, &s.d16, 2);
    if (has_min(w.layout)) std::memcpy(scales + 2 * (kLanes + lane), &s.m16, 2);
    return;
  }
  std::memcpy(scales + 4 * lane, &s.d32, 4);
  if (has_min(w.layout)) std::memcpy(scales + 4 * (kLanes + lane), &s.m32, 4);
}

void store_codes(const Block32& s, Layout layout, int lane, uint8_t* payload) {
  if (payload_bytes(layout) == 512) {
    for (int j = 0; j < 8; ++j) std::memcpy(payload + 64 * j + 4 * lane, s.q + 4 * j, 4);
    return;
  }
  for (int j = 0; j < 4; ++j) {
    uint8_t* out = payload + 64 * j + 4 * lane;
    for (int i = 0; i < 4; ++i) {
      out[i] = static_cast<uint8_t>(s.q[4 * j + i] | (s.q[16 + 4 * j + i] << 4));
    }
  }
}

// The common types need no decoding: 4-byte pieces move as they are (Q8_0 with the sign bit turned,
// which adds 128).
void pack_lane_direct(const PackedMatrix& w, QuantType type, const uint8_t* row, int lane,
                      uint8_t* panel) {
  const int bytes = info_of(type).bytes;
  const size_t stride = quant_block_bytes(w.layout, w.scale);
  const size_t payload = payload_bytes(w.layout);
  const int pieces = static_cast<int>(payload) / 64;
  const int head = type == QuantType::kQ4_1 ? 4 : 2;
  const uint32_t flip = type == QuantType::kQ8_0 ? 0x80808080u : 0u;
  for (int b = 0; b < w.k / kQuantGroup; ++b, row += bytes, panel += stride) {
    for (int j = 0; j < pieces; ++j) {
      const uint32_t piece = load_u32(row + head + 4 * j) ^ flip;
      std::memcpy(panel + 64 * j + 4 * lane, &piece, 4);
    }
    std::memcpy(panel + payload + 2 * lane, row, 2);
    if (head == 4) std::memcpy(panel + payload + 2 * (kLanes + lane), row + 2, 2);
  }
}

void pack_lane_decoded(const PackedMatrix& w, QuantType type, const uint8_t* row, int lane,
                       uint8_t* panel) {
  const size_t stride = quant_block_bytes(w.layout, w.scale);
  for (int b = 0; b < w.k / kQuantGroup; ++b, panel += stride) {
    Block32 block = {};
    read_block(type, row, b, &block);
    store_codes(block, w.layout, lane, panel);
    store_scales(block, w, lane, panel + payload_bytes(w.layout));
  }
}

void pack_lane(const PackedMatrix& w, QuantType type, const uint8_t* row, int lane,
               uint8_t* panel) {
  switch (type) {
    case QuantType::kF32:
    case QuantType::kBF16: {
      // F32: one column a vector; BF16: a column pair a vector. Both are 4 bytes a lane.
      const int pieces = type == QuantType::kF32 ? w.k : w.k / 2;
      for (int p = 0; p < pieces; ++p) std::memcpy(panel + 64 * p + 4 * lane, row + 4 * p, 4);
      return;
    }
    case QuantType::kQ4_0:
    case QuantType::kQ4_1:
    case QuantType::kQ8_0:
      return pack_lane_direct(w, type, row, lane, panel);
    default:
      return pack_lane_decoded(w, type, row, lane, panel);
  }
}

float scale_at(const uint8_t* scales, ScaleType type, int index) {
  if (type == ScaleType::kF16) return f16_to_f32(load_u16(scales + 2 * index));
  return bits_to_f32(load_u32(scales + 4 * index));
}

}  // namespace

size_t source_row_bytes(QuantType type, int k) {
  const SourceInfo& info = info_of(type);
  return k % info.block ? 0 : static_cast<size_t>(k / info.block) * info.bytes;
}

size_t quant_block_bytes(Layout layout, ScaleType scale) {
  return payload_bytes(layout) + kLanes * scale_bytes(scale) * (has_min(layout) ? 2 : 1);
}

PackedMatrix packed_shape(QuantType type, int rows, int k, int group_rows) {
  const SourceInfo& info = info_of(type);
  PackedMatrix w;
  w.layout = info.layout;
  w.scale = info.scale;
  w.k = k;
  w.rows = rows;
  w.group_rows = group_rows;
  w.group_panels = (group_rows + kLanes - 1) / kLanes;
  w.panels = w.groups() * w.group_panels;
  if (info.scale == ScaleType::kNone) {
    w.panel_stride = static_cast<size_t>(k) * (info.layout == Layout::kF32 ? 64 : 32);
  } else {
    w.panel_stride = static_cast<size_t>(k / kQuantGroup) * quant_block_bytes(w.layout, w.scale);
  }
  return w;
}

void pack_matrix(const PackedMatrix& w, QuantType type, const uint8_t* source, uint8_t* data) {
  const size_t row_bytes = source_row_bytes(type, w.k);
  if (w.group_rows % kLanes) std::memset(data, 0, w.bytes());  // the padding lanes
  for (int row = 0; row < w.rows; ++row) {
    const int in_group = row % w.group_rows;
    const int panel = row / w.group_rows * w.group_panels + in_group / kLanes;
    pack_lane(w, type, source + static_cast<size_t>(row) * row_bytes, in_group % kLanes,
              data + static_cast<size_t>(panel) * w.panel_stride);
  }
}

void unpack_row(const PackedMatrix& w, int row, float* out) {
  const int in_group = row % w.group_rows;
  const int lane = in_group % kLanes;
  const int panel_index = row / w.group_rows * w.group_panels + in_group / kLanes;
  const uint8_t* panel = w.data + static_cast<size_t>(panel_index) * w.panel_stride;
  if (w.layout == Layout::kF32) {
    for (int k = 0; k < w.k; ++k) std::memcpy(out + k, panel + 64 * k + 4 * lane, 4);
    return;
  }
  if (w.layout == Layout::kBF16) {
    for (int k = 0; k < w.k; ++k) {
      out[k] = bf16_to_f32(load_u16(panel + 64 * (k / 2) + 4 * lane + 2 * (k % 2)));
    }
    return;
  }
  const bool nibbles = payload_bytes(w.layout) == 256;
  const int zero = w.layout == Layout::kQ4 ? 8 : (w.layout == Layout::kQ8 ? 128 : 0);
  for (int b = 0; b < w.k / kQuantGroup; ++b, out += kQuantGroup) {
    const uint8_t* scales = panel + payload_bytes(w.layout);
    const float d = scale_at(scales, w.scale, lane);
    const float m = has_min(w.layout) ? scale_at(scales, w.scale, kLanes + lane) : 0.0f;
    for (int i = 0; i < kQuantGroup; ++i) {
      const int column = nibbles ? i % 16 : i;
      int q = panel[64 * (column / 4) + 4 * lane + column % 4];
      if (nibbles) q = i < 16 ? q & 0x0F : q >> 4;
      out[i] = std::fma(d, static_cast<float>(q - zero), m);
    }
    panel += quant_block_bytes(w.layout, w.scale);
  }
}

}  // namespace octavo
