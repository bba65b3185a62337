#include "arena.h"

#include <sys/mman.h>

#include <new>
#include <utility>

namespace octavo {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

Arena::Arena(size_t bytes) {
  capacity_ = (bytes + kHugePage - 1) & ~(kHugePage - 1);
  mapped_ = capacity_ + kHugePage;  // room to align the start
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#ifdef MAP_NORESERVE
  flags |= MAP_NORESERVE;
#endif
  void* at = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (at == MAP_FAILED) throw std::bad_alloc();
  mapping_ = static_cast<uint8_t*>(at);
  const uintptr_t start = (reinterpret_cast<uintptr_t>(at) + kHugePage - 1) & ~(kHugePage - 1);
  base_ = reinterpret_cast<uint8_t*>(start);
#ifdef MADV_HUGEPAGE
  madvise(base_, capacity_, MADV_HUGEPAGE);  // a hint: refusal costs speed only
#endif
}

Arena::~Arena() {
  if (mapping_) munmap(mapping_, mapped_);
}

Arena::Arena(Arena&& other) noexcept { *this = std::move(other); }

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_, other.mapped_);
  std::swap(base_, other.base_);
  std::swap(capacity_, other.capacity_);
  std::swap(used_, other.used_);
  return *this;
}

uint8_t* Arena::allocate(size_t bytes) {
  const size_t size = aligned(bytes);
  if (size > capacity_ - used_) throw std::bad_alloc();
  uint8_t* out = base_ + used_;
  used_ += size;
  return out;
}

}  // namespace octavo
