// How fast this machine's memory can be read: `read THREADS MEGABYTES` prints GB/s, the best of some passes, each
// thread over its own part. The limit of whatever streams weights.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <thread>
#include <vector>

namespace {

std::uint64_t sum(const std::uint64_t* data, std::size_t n) {
  std::uint64_t total[32] = {};
  for (std::size_t i = 0; i + 32 <= n; i += 32) {
    __builtin_prefetch(data + i + 1024);
    for (std::size_t j = 0; j < 32; ++j) total[j] += data[i + j];
  }
  return std::accumulate(total, total + 32, std::uint64_t{0});
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t threads = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 2;
  const std::size_t words = (argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 1024) * 131072;
  std::vector<std::uint64_t> data(words, 1);
  std::vector<std::uint64_t> sums(threads);
  double best_s = 1e9;
  for (int pass = 0; pass < 9; ++pass) {
    const auto began = std::chrono::steady_clock::now();
    std::vector<std::thread> team;
    for (std::size_t t = 0; t < threads; ++t) {
      team.emplace_back([&, t] { sums[t] = sum(data.data() + words / threads * t, words / threads); });
    }
    for (auto& thread : team) thread.join();
    best_s = std::min(best_s, std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
  }
  if (std::accumulate(sums.begin(), sums.end(), std::uint64_t{0}) == 0) return 1;
  std::printf("%.2f\n", static_cast<double>(words) * 8 / best_s / 1e9);
}
