// Which attention splits several sequences of a step read from the same blocks. Pure: no executor
// state, no memory but the caller's lists.
#pragma once
#include <cstdint>
#include <vector>

namespace octavo {

// A query row that may share: it sees every position of splits begin .. end - 1.
struct SplitUser {
  int32_t begin;
  int32_t end;
  const int32_t* block_table;
};

// Users members[first .. first + count - 1], at least two, have the same blocks in this split.
struct SharedSplit {
  int32_t split;
  int32_t first;
  int32_t count;
};

// Splits ascending; in a split, groups by their first user; members of a group ascending. Members
// are indices into `users`. Equal tables make one group, cut evenly into several where it has more
// than `most` (at least 2) members. Time is proportional to the users' splits together.
void find_shared_splits(const std::vector<SplitUser>& users, int block_size, int most,
                        std::vector<int32_t>& members, std::vector<SharedSplit>& groups);

}  // namespace octavo
