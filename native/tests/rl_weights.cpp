#include <atomic>
#include <thread>
#include <vector>

#include "check.hpp"
#include "headrace/error.hpp"
#include "headrace/rl/weights.hpp"

using headrace::rl::Weights;

TEST(rl_weights_count_their_versions) {
  Weights weights(3);
  std::vector<float> read(3, -1.0F);
  CHECK(weights.read(read) == 0 && read == std::vector<float>(3, 0.0F));
  const std::vector<float> published{1.0F, 2.0F, 3.0F};
  CHECK(weights.publish(published) == 1);
  CHECK(weights.read(read) == 1 && read == published && weights.version() == 1);
  CHECK_THROWS(headrace::Error, weights.publish(std::vector<float>(2)));
  std::vector<float> small(2);
  CHECK_THROWS(headrace::Error, weights.read(small));
}

TEST(rl_weights_are_read_whole_while_others_publish) {
  constexpr std::size_t size = 1000;
  Weights weights(size);
  std::atomic<bool> stop{false};
  std::atomic<int> torn{0};
  const auto publisher = [&](float sign) {
    for (int round = 1; round <= 400; ++round) {
      weights.publish(std::vector<float>(size, sign * static_cast<float>(round)));
    }
  };
  const auto reader = [&] {
    std::vector<float> seen(size);
    std::uint64_t last = 0;
    while (!stop.load()) {
      const std::uint64_t version = weights.read(seen);
      if (version < last) ++torn;
      last = version;
      for (const float x : seen) torn += x == seen[0] ? 0 : 1;
    }
  };
  std::thread first(reader);
  std::thread second(reader);
  std::thread up(publisher, 1.0F);
  std::thread down(publisher, -1.0F);
  up.join();
  down.join();
  stop = true;
  first.join();
  second.join();
  CHECK(torn == 0);
  CHECK(weights.version() == 800);
}
