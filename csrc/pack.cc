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
    {32, 22, Layout::kQ5, ScaleType::kF16},       // Q5_0: d, 4 bytes of fifth bits, nibbles
    {32, 24, Layout::kQ5M, ScaleType::kF16},      // Q5_1: d, m, fifth bits, nibbles
    {32, 34, Layout::kQ8, ScaleType::kF16},       // Q8_0: d, 32 signed bytes
    {256, 144, Layout::kQ4M, ScaleType::kK32},    // Q4_K: d, dmin, 12 bytes of scales, nibbles
    {256, 176, Layout::kQ5M, ScaleType::kK32},    // Q5_K: the same and 32 bytes of fifth bits
    {32, 20, Layout::kQ4, ScaleType::kF32},       // INT4: d as f32, nibbles
    {32, 24, Layout::kQ4M, ScaleType::kF32},      // INT4_MIN: d, m as f32, nibbles
    {32, 36, Layout::kQ8, ScaleType::kF32},       // INT8: d as f32, 32 signed bytes
    {32, 40, Layout::kQ8M, ScaleType::kF32},      // INT8_MIN: d, m as f32, 32 unsigned bytes
    {256, 84, Layout::kQ2M, ScaleType::kK16},     // Q2_K: 16 scales and minima, bit pairs, d, dmin
    {256, 110, Layout::kQ3, ScaleType::kK16},     // Q3_K: third bits, bit pairs, 12 of scales, d
    {256, 210, Layout::kQ6, ScaleType::kK16},     // Q6_K: nibbles, bit pairs, 16 scales, d
    {32, 17, Layout::kQ5, ScaleType::kF32},       // MXFP4: exponent, nibbles
    {2, 4, Layout::kF16, ScaleType::kNone},       // F16: as BF16
};
static_assert(sizeof(kSources) / sizeof(kSources[0]) == static_cast<size_t>(QuantType::kCount));

const SourceInfo& info_of(QuantType type) { return kSources[static_cast<int>(type)]; }

// One row's 32 columns: unsigned codes as the layout wants them, and the scales as stored there.
struct Block32 {
  uint8_t q[kQuantGroup];
  uint16_t d16, m16;  // kF16, or the header of a super-block
  float d32, m32;     // kF32
  int8_t d8[2], m8[2];
};

void read_q5(const uint8_t* fifth, const uint8_t* nibbles, Block32* out) {
  const uint32_t bits = load_u32(fifth);
  for (int i = 0; i < 16; ++i) {
    out->q[i] = static_cast<uint8_t>((nibbles[i] & 0x0F) | (((bits >> i) & 1u) << 4));
    out->q[i + 16] = static_cast<uint8_t>((nibbles[i] >> 4) | (((bits >> (i + 16)) & 1u) << 4));
  }
}

// Minima are subtracted in the file and added here.
uint16_t negated_f16(const uint8_t* p) { return load_u16(p) ^ 0x8000u; }

// Sub-block `sub` of 32 columns of a Q4_K or Q5_K super-block.
void read_q45_k(bool five, const uint8_t* block, int sub, Block32* out) {
  out->d16 = load_u16(block);
  out->m16 = negated_f16(block + 2);
  const uint8_t* s = block + 4;
  int scale, min;
  if (sub < 4) {
    scale = s[sub] & 63;
    min = s[sub + 4] & 63;
  } else {
    scale = (s[sub + 4] & 0x0F) | ((s[sub - 4] >> 6) << 4);
    min = (s[sub + 4] >> 4) | ((s[sub] >> 6) << 4);
  }
  out->d8[0] = static_cast<int8_t>(scale);
  out->m8[0] = static_cast<int8_t>(min);
  const uint8_t* fifth = block + 16;
  const uint8_t* nibbles = block + (five ? 48 : 16) + 32 * (sub / 2);
  for (int i = 0; i < kQuantGroup; ++i) {
    int q = (sub % 2) ? nibbles[i] >> 4 : nibbles[i] & 0x0F;
    if (five) q |= ((fifth[i] >> sub) & 1) << 4;
    out->q[i] = static_cast<uint8_t>(q);
  }
}

// Bit pairs of sub-block `sub`: 32 bytes hold four sub-blocks, lowest bits first.
int bit_pair(const uint8_t* pairs, int sub, int i) {
  return (pairs[32 * (sub / 4) + i] >> (2 * (sub % 4))) & 3;
}

void read_q2_k(const uint8_t* block, int sub, Block32* out) {
  out->d16 = load_u16(block + 80);
  out->m16 = negated_f16(block + 82);
  for (int half = 0; half < 2; ++half) {
    out->d8[half] = static_cast<int8_t>(block[2 * sub + half] & 0x0F);
    out->m8[half] = static_cast<int8_t>(block[2 * sub + half] >> 4);
  }
  for (int i = 0; i < kQuantGroup; ++i) {
    out->q[i] = static_cast<uint8_t>(bit_pair(block + 16, sub, i));
  }
}

void read_q3_k(const uint8_t* block, int sub, Block32* out) {
  out->d16 = load_u16(block + 108);
  const uint8_t* low = block + 96;
  const uint8_t* high = block + 104;
  for (int half = 0; half < 2; ++half) {
    const int g = 2 * sub + half;
    const int nibble = g < 8 ? low[g] & 0x0F : low[g - 8] >> 4;
    const int top = (high[g % 4] >> (2 * (g / 4))) & 3;
    out->d8[half] = static_cast<int8_t>((nibble | (top << 4)) - 32);
  }
  for (int i = 0; i < kQuantGroup; ++i) {
    const int third = (block[i] >> sub) & 1;
    out->q[i] = static_cast<uint8_t>(bit_pair(block + 32, sub, i) | (third << 2));
  }
}

void read_q6_k(const uint8_t* block, int sub, Block32* out) {
  out->d16 = load_u16(block + 208);
  std::memcpy(out->d8, block + 192 + 2 * sub, 2);
  // 64 bytes hold four sub-blocks: the low nibbles two of them, the high ones the others.
  const uint8_t* nibbles = block + 64 * (sub / 4) + 32 * (sub % 2);
  const int shift = sub % 4 < 2 ? 0 : 4;
  for (int i = 0; i < kQuantGroup; ++i) {
    const int low = (nibbles[i] >> shift) & 0x0F;
    out->q[i] = static_cast<uint8_t>(low | (bit_pair(block + 128, sub, i) << 4));
  }
}

// E2M1 values doubled are integers; the scale 2^(e - 128) is halved to match.
void read_mxfp4(const uint8_t* block, Block32* out) {
  constexpr int8_t kTwice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  out->d32 = std::ldexp(1.0f, block[0] - 128);
  for (int i = 0; i < 16; ++i) {
    out->q[i] = static_cast<uint8_t>(16 + kTwice[block[1 + i] & 0x0F]);
    out->q[i + 16] = static_cast<uint8_t>(16 + kTwice[block[1 + i] >> 4]);
  }
}

// f32 scales, then codes; `flip` turns the sign bit of signed ones, which adds 128.
void read_int(const SourceInfo& info, int flip, const uint8_t* block, Block32* out) {
  std::memcpy(&out->d32, block, 4);
  const uint8_t* codes = block + 4;
  if (layout_shape(info.layout).min) {
    std::memcpy(&out->m32, codes, 4);
    codes += 4;
  }
  if (!layout_shape(info.layout).nibbles) {
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
      return read_q5(block + 2, block + 6, out);
    case QuantType::kQ5_1:
      out->d16 = load_u16(block);
      out->m16 = load_u16(block + 2);
      return read_q5(block + 4, block + 8, out);
    case QuantType::kQ4_K:
    case QuantType::kQ5_K:
      return read_q45_k(type == QuantType::kQ5_K, block, sub, out);
    case QuantType::kQ2_K:
      return read_q2_k(block, sub, out);
    case QuantType::kQ3_K:
      return read_q3_k(block, sub, out);
    case QuantType::kQ6_K:
      return read_q6_k(block, sub, out);
    case QuantType::kMXFP4:
      return read_mxfp4(block, out);
    case QuantType::kInt4:
    case QuantType::kInt4Min:
    case QuantType::kInt8:
    case QuantType::kInt8Min:
      return read_int(info, type == QuantType::kInt8 ? 0x80 : 0, block, out);
    default:
      return;  // Q4_0, Q4_1, Q8_0 have direct paths
  }
}

void store_scales(const Block32& s, const PackedMatrix& w, int lane, uint8_t* scales) {
  const bool min = layout_shape(w.layout).min;
  uint8_t* minima = scales + scale_bytes(w.scale);
  switch (w.scale) {
    case ScaleType::kF16:
      std::memcpy(scales + 2 * lane, &s.d16, 2);
      if (min) std::memcpy(minima + 2 * lane, &s.m16, 2);
      return;
    case ScaleType::kF32:
      std::memcpy(scales + 4 * lane, &s.d32, 4);
      if (min) std::memcpy(minima + 4 * lane, &s.m32, 4);
      return;
    default:
      for (int part = 0; part < scale_parts(w.scale); ++part) {
        scales[kLanes * part + lane] = static_cast<uint8_t>(s.d8[part]);
        if (min) minima[kLanes * part + lane] = static_cast<uint8_t>(s.m8[part]);
      }
  }
}

void store_codes(const Block32& s, Layout layout, int lane, uint8_t* payload) {
  const LayoutShape shape = layout_shape(layout);
  uint32_t vectors[8] = {};
  int used = 0;  // bits of a code that are in planes already
  uint32_t* plane = vectors;
  uint32_t quads[8];
  std::memcpy(quads, s.q, sizeof(quads));
  if (shape.nibbles) {
    for (int j = 0; j < 8; ++j) plane[j % 4] |= (quads[j] & 0x0F0F0F0Fu) << (4 * (j / 4));
    used = 4;
    plane += 4;
  }
  if (shape.pairs) {
    for (int j = 0; j < 8; ++j) {
      plane[j / 4] |= ((quads[j] >> used) & 0x03030303u) << (2 * (j % 4));
    }
    used += 2;
    plane += 2;
  }
  if (shape.bits) {
    for (int j = 0; j < 8; ++j) plane[0] |= ((quads[j] >> used) & 0x01010101u) << j;
    ++plane;
  }
  if (plane == vectors) {
    std::memcpy(vectors, quads, sizeof(quads));
    plane += 8;
  }
  for (int v = 0; v < plane - vectors; ++v) {
    std::memcpy(payload + 64 * v + 4 * lane, &vectors[v], 4);
  }
}

// The code of one column, as stored.
int load_code(Layout layout, const uint8_t* payload, int lane, int column) {
  const LayoutShape shape = layout_shape(layout);
  const int j = column / 4;
  const uint8_t* at = payload + 4 * lane + column % 4;
  if (!shape.nibbles && !shape.pairs) return at[64 * j];
  int code = 0, used = 0;
  if (shape.nibbles) {
    code = (at[64 * (j % 4)] >> (4 * (j / 4))) & 15;
    used = 4;
    at += 256;
  }
  if (shape.pairs) {
    code |= ((at[64 * (j / 4)] >> (2 * (j % 4))) & 3) << used;
    used += 2;
    at += 128;
  }
  if (shape.bits) code |= ((at[0] >> j) & 1) << used;
  return code;
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
  const size_t header = super_bytes(w.layout, w.scale);
  for (int b = 0; b < w.k / kQuantGroup; ++b, panel += stride) {
    Block32 block = {};
    read_block(type, row, b, &block);
    if (header && b % kSuperBlocks == 0) {
      std::memcpy(panel + 2 * lane, &block.d16, 2);
      if (layout_shape(w.layout).min) std::memcpy(panel + 2 * (kLanes + lane), &block.m16, 2);
      panel += header;
    }
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
    case QuantType::kF16:
      for (int k = 0; k < w.k; ++k) std::memcpy(panel + 32 * k + 2 * lane, row + 2 * k, 2);
      return;
    case QuantType::kQ4_0:
    case QuantType::kQ4_1:
    case QuantType::kQ8_0:
      return pack_lane_direct(w, type, row, lane, panel);
    default:
      return pack_lane_decoded(w, type, row, lane, panel);
  }
}

// A lane's scale (or minimum) for a part of a block, from those of the block and of the run it is in.
float scale_at(const uint8_t* scales, const uint8_t* header, ScaleType type, int part, int lane) {
  if (type == ScaleType::kF16) return f16_to_f32(load_u16(scales + 2 * lane));
  if (type == ScaleType::kF32) return bits_to_f32(load_u32(scales + 4 * lane));
  const int8_t factor = static_cast<int8_t>(scales[kLanes * part + lane]);
  return f16_to_f32(load_u16(header + 2 * lane)) * static_cast<float>(factor);
}

void unpack_quantized(const PackedMatrix& w, const uint8_t* panel, int lane, float* out) {
  const LayoutShape shape = layout_shape(w.layout);
  const int zero = shape.min ? 0 : 1 << shape.zero_shift;
  const int columns = kQuantGroup / scale_parts(w.scale);
  const size_t header_bytes = super_bytes(w.layout, w.scale);
  const uint8_t* header = panel;
  for (int b = 0; b < w.k / kQuantGroup; ++b, out += kQuantGroup) {
    if (header_bytes && b % kSuperBlocks == 0) {
      header = panel;
      panel += header_bytes;
    }
    const uint8_t* scales = panel + payload_bytes(w.layout);
    const uint8_t* minima = scales + scale_bytes(w.scale);
    for (int i = 0; i < kQuantGroup; ++i) {
      const int part = i / columns;
      const float d = scale_at(scales, header, w.scale, part, lane);
      const float m =
          shape.min ? scale_at(minima, header + 2 * kLanes, w.scale, part, lane) : 0.0f;
      out[i] = std::fma(d, static_cast<float>(load_code(w.layout, panel, lane, i) - zero), m);
    }
    panel += quant_block_bytes(w.layout, w.scale);
  }
}

}  // namespace

size_t source_row_bytes(QuantType type, int k) {
  const SourceInfo& info = info_of(type);
  return k % info.block ? 0 : static_cast<size_t>(k / info.block) * info.bytes;
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
    const size_t runs = k / (kSuperBlocks * kQuantGroup);
    w.panel_stride = static_cast<size_t>(k / kQuantGroup) * quant_block_bytes(w.layout, w.scale) +
                     runs * super_bytes(w.layout, w.scale);
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
  if (w.layout == Layout::kF16) {
    for (int k = 0; k < w.k; ++k) out[k] = f16_to_f32(load_u16(panel + 32 * k + 2 * lane));
    return;
  }
  unpack_quantized(w, panel, lane, out);
}

}  // namespace octavo
