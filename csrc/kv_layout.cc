// Where K, V and their scales lie inside one block of one layer.
#include "octavo/kernels.h"

namespace octavo {

KVLayout make_kv_layout(KVDtype dtype, int num_kv_heads, int head_dim, int block_size) {
  const size_t element = dtype == KVDtype::kF32 ? 4 : dtype == KVDtype::kBF16 ? 2 : 1;
  const size_t plane = static_cast<size_t>(block_size) * head_dim * element;
  const size_t scales = dtype == KVDtype::kI8 ? static_cast<size_t>(block_size) * 4 : 0;
  KVLayout layout;
  layout.dtype = dtype;
  layout.num_kv_heads = num_kv_heads;
  layout.head_dim = head_dim;
  layout.block_size = block_size;
  layout.v_offset = plane;
  layout.k_scale_offset = 2 * plane;
  layout.v_scale_offset = 2 * plane + scales;
  layout.head_stride = (2 * plane + 2 * scales + 63) / 64 * 64;
  layout.block_stride = layout.head_stride * static_cast<size_t>(num_kv_heads);
  return layout;
}

}  // namespace octavo
