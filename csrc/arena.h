// Anonymous memory in one mapping: 2 MiB aligned, huge pages asked for, touched lazily.
#pragma once
#include <cstddef>
#include <cstdint>

namespace octavo {

// A bump allocator. Memory is zero and lives as long as the arena.
class Arena {
 public:
  Arena() = default;
  explicit Arena(size_t bytes);  // throws std::bad_alloc
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;

  // 64-byte aligned; throws std::bad_alloc when the arena is full.
  uint8_t* allocate(size_t bytes);
  template <class T>
  T* allocate_array(size_t count) {
    return reinterpret_cast<T*>(allocate(count * sizeof(T)));
  }
  size_t used() const { return used_; }
  size_t capacity() const { return capacity_; }

  static size_t aligned(size_t bytes) { return (bytes + 63) & ~static_cast<size_t>(63); }

 private:
  uint8_t* mapping_ = nullptr;
  size_t mapped_ = 0;
  uint8_t* base_ = nullptr;
  size_t capacity_ = 0;
  size_t used_ = 0;
};

}  // namespace octavo
