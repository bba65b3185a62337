// Users of a split are hashed by the split's first and last block, and compared in full on a hit:
// sequences share blocks from their beginning on, so others hardly ever meet.
#include "shared_splits.h"

#include <algorithm>
#include <cstring>

#include "octavo/kernels.h"

namespace octavo {
namespace {

// The users of one split by their blocks.
class Buckets {
 public:
  explicit Buckets(size_t users) {
    size_t size = 4;
    while (size < 2 * users) size *= 2;
    slots_.resize(size);
    group_of_.resize(users);
  }

  // from .. to - 1: the blocks of the split.
  void start(int from, int to) {
    from_ = from;
    to_ = to;
    firsts_.clear();
    counts_.clear();
    std::fill(slots_.begin(), slots_.end(), -1);
  }

  void add(const std::vector<SplitUser>& users, int user) {
    const int32_t* blocks = users[user].block_table + from_;
    const size_t length = static_cast<size_t>(to_ - from_);
    const uint64_t key = static_cast<uint64_t>(static_cast<uint32_t>(blocks[0])) << 32 |
                         static_cast<uint32_t>(blocks[length - 1]);
    size_t at = (key * 0x9E3779B97F4A7C15u) >> 32;  // Fibonacci hashing (Knuth, volume 3, 6.4)
    for (;; ++at) {
      int32_t& slot = slots_[at & (slots_.size() - 1)];
      if (slot < 0) {
        slot = static_cast<int32_t>(firsts_.size());
        firsts_.push_back(user);
        counts_.push_back(0);
      } else if (std::memcmp(users[firsts_[slot]].block_table + from_, blocks,
                             length * sizeof(int32_t)) != 0) {
        continue;
      }
      group_of_[user] = slot;
      ++counts_[slot];
      return;
    }
  }

  bool shared() const { return counts_.size() < total(); }
  int groups() const { return static_cast<int>(counts_.size()); }
  int count(int group) const { return counts_[group]; }
  int group_of(int user) const { return group_of_[user]; }

 private:
  size_t total() const {
    size_t sum = 0;
    for (int32_t n : counts_) sum += static_cast<size_t>(n);
    return sum;
  }

  int from_ = 0, to_ = 0;
  std::vector<int32_t> slots_;     // group or -1
  std::vector<int32_t> firsts_;    // of a group: the user it began with
  std::vector<int32_t> counts_;    // of a group: users
  std::vector<int32_t> group_of_;  // of a user
};

}  // namespace

void find_shared_splits(const std::vector<SplitUser>& users, int block_size, int most,
                        std::vector<int32_t>& members, std::vector<SharedSplit>& groups) {
  members.clear();
  groups.clear();
  if (users.size() < 2) return;
  const int count = static_cast<int>(users.size());
  int begin = users[0].begin, end = users[0].end;
  for (const SplitUser& user : users) {
    begin = std::min(begin, user.begin);
    end = std::max(end, user.end);
  }
  Buckets buckets(users.size());
  std::vector<int32_t> place;  // of a group: where its next member goes, -1 if it is not shared
  for (int split = begin; split < end; ++split) {
    const auto takes_part = [&](int u) { return users[u].begin <= split && split < users[u].end; };
    buckets.start(split * kSplit / block_size, ((split + 1) * kSplit - 1) / block_size + 1);
    for (int u = 0; u < count; ++u) {
      if (takes_part(u)) buckets.add(users, u);
    }
    if (!buckets.shared()) continue;
    place.assign(buckets.groups(), -1);
    for (int g = 0; g < buckets.groups(); ++g) {
      const int n = buckets.count(g), pieces = (n + most - 1) / most;
      if (n < 2) continue;
      const int32_t first = place[g] = static_cast<int32_t>(members.size());
      members.resize(members.size() + n);
      for (int p = 0; p < pieces; ++p) {
        const int32_t from = n * p / pieces, to = n * (p + 1) / pieces;
        if (to - from > 1) groups.push_back({split, first + from, to - from});
      }
    }
    for (int u = 0; u < count; ++u) {
      if (!takes_part(u)) continue;
      int32_t& at = place[buckets.group_of(u)];
      if (at >= 0) members[at++] = u;
    }
  }
}

}  // namespace octavo
