// What a collect keeps for each tile of environments until all are merged in order.
#pragma once

#include <cstdint>
#include <vector>

#include "headrace/rl/collector.hpp"

namespace headrace::rl {

struct Collector::Tile {
  std::vector<double> obs_sums;  // [D]
  std::vector<double> obs_squares;
  double return_sum = 0.0;
  double return_square = 0.0;
  std::vector<Episode> episodes;
  std::uint64_t faults = 0;
};

}  // namespace headrace::rl
