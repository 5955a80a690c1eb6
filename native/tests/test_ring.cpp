#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "headrace/error.hpp"
#include "headrace/ring.hpp"

using namespace std::chrono_literals;
using headrace::Error;
using headrace::MpmcRing;
using headrace::ReadSlot;
using headrace::RingStatus;
using headrace::SpscRing;
using headrace::WriteSlot;

namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kMessages = 20'000;
#else
constexpr std::uint64_t kMessages = 200'000;
#endif

struct Memory {
  explicit Memory(std::size_t size) : bytes(size) {
    void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared = std::shared_ptr<void>(base, [size](void* at) { munmap(at, size); });
  }
  std::shared_ptr<void> shared;
  std::size_t bytes;
};

template <class Ring>
Memory ring_memory(std::size_t slots, std::size_t slot_bytes) {
  Memory memory(Ring::bytes_for(slots, slot_bytes));
  Ring::format(memory.shared.get(), memory.bytes, slots, slot_bytes);
  return memory;
}

template <class Ring>
bool push_value(Ring& ring, std::uint64_t value, headrace::Timeout limit = 20s) {
  return headrace::push(ring, &value, sizeof(value), limit) == RingStatus::ok;
}

template <class Ring>
RingStatus pop_value(Ring& ring, std::uint64_t& value, headrace::Timeout limit = 20s) {
  std::size_t length = 0;
  const RingStatus status = headrace::pop(ring, &value, length, limit);
  if (status == RingStatus::ok) CHECK(length == sizeof(value));
  return status;
}

template <class Ring>
void check_fifo() {
  const auto memory = ring_memory<Ring>(8, 8);
  Ring ring(memory.shared, memory.bytes);
  std::uint64_t value = 0;
  for (std::uint64_t lap = 0; lap < 5; ++lap) {
    for (std::uint64_t i = 0; i < 8; ++i) CHECK(push_value(ring, lap * 8 + i, 0s));
    CHECK(!push_value(ring, 99, 0s));
    CHECK(ring.size() == 8);
    for (std::uint64_t i = 0; i < 8; ++i) CHECK(pop_value(ring, value, 0s) == RingStatus::ok && value == lap * 8 + i);
    CHECK(pop_value(ring, value, 1ms) == RingStatus::would_block);
  }
  CHECK(push_value(ring, 7));
  ring.close();
  CHECK(!push_value(ring, 8));
  CHECK(pop_value(ring, value) == RingStatus::ok && value == 7);
  CHECK(pop_value(ring, value) == RingStatus::closed);
}

template <class Ring>
void check_refusals() {
  for (const std::size_t slots : {0U, 1U, 3U, 100U}) CHECK_THROWS(Error, Ring::bytes_for(slots, 64));
  CHECK_THROWS(Error, Ring::bytes_for(4, 0));
  CHECK_THROWS(Error, Ring::bytes_for(4, std::size_t{1} << 40U));
  const auto memory = ring_memory<Ring>(4, 16);
  CHECK_THROWS(Error, Ring(memory.shared, memory.bytes - 1));
  CHECK_THROWS(Error, Ring(memory.shared, 16));
  const Memory blank(4096);
  CHECK_THROWS(Error, Ring(blank.shared, blank.bytes));
  Ring ring(memory.shared, memory.bytes);
  const std::byte big[17] = {};
  CHECK_THROWS(Error, headrace::push(ring, big, sizeof(big), 0s));
  CHECK(headrace::push(ring, big, 0, 0s) == RingStatus::ok);  // empty messages are messages
}

template <class Ring>
void check_close_wakes_sleepers() {
  const auto memory = ring_memory<Ring>(2, 8);
  Ring ring(memory.shared, memory.bytes);
  std::thread closer([&] {
    std::this_thread::sleep_for(30ms);
    ring.close();
  });
  std::uint64_t value = 0;
  CHECK(pop_value(ring, value, 20s) == RingStatus::closed);
  closer.join();
}

}  // namespace

TEST(spsc_is_a_bounded_fifo) {
  check_fifo<SpscRing>();
}
TEST(mpmc_is_a_bounded_fifo) {
  check_fifo<MpmcRing>();
}
TEST(spsc_refuses_bad_geometry_and_memory) {
  check_refusals<SpscRing>();
}
TEST(mpmc_refuses_bad_geometry_and_memory) {
  check_refusals<MpmcRing>();
}
TEST(spsc_close_wakes_sleepers) {
  check_close_wakes_sleepers<SpscRing>();
}
TEST(mpmc_close_wakes_sleepers) {
  check_close_wakes_sleepers<MpmcRing>();
}

TEST(ring_kinds_are_told_apart) {
  const auto memory = ring_memory<SpscRing>(4, 64);
  CHECK_THROWS(Error, MpmcRing(memory.shared, memory.bytes));
}

TEST(spsc_two_threads_keep_order) {
  const auto memory = ring_memory<SpscRing>(64, 8);
  SpscRing ring(memory.shared, memory.bytes);
  std::thread producer([&] {
    for (std::uint64_t i = 0; i < kMessages; ++i) CHECK(push_value(ring, i));
    ring.close();
  });
  std::uint64_t expected = 0;
  std::uint64_t value = 0;
  while (pop_value(ring, value) == RingStatus::ok) CHECK(value == expected++);
  CHECK(expected == kMessages);
  producer.join();
}

TEST(spsc_batches_become_visible_at_the_flush) {
  const auto memory = ring_memory<SpscRing>(8, 8);
  SpscRing ring(memory.shared, memory.bytes);
  WriteSlot out;
  ReadSlot in;
  for (int i = 0; i < 3; ++i) {
    CHECK(ring.reserve(out) == RingStatus::ok);
    ring.commit(out, 8);
  }
  CHECK(ring.peek(in) == RingStatus::would_block);
  ring.flush_writes();
  for (int i = 0; i < 3; ++i) {
    CHECK(ring.peek(in) == RingStatus::ok);
    ring.release(in);
  }
  CHECK(ring.size() == 3);
  ring.flush_reads();
  CHECK(ring.size() == 0);
}

TEST(spsc_roles_belong_to_one_live_object) {
  const auto memory = ring_memory<SpscRing>(4, 8);
  auto first = std::make_unique<SpscRing>(memory.shared, memory.bytes);
  SpscRing second(memory.shared, memory.bytes);
  CHECK(push_value(*first, 1));
  WriteSlot slot;
  CHECK_THROWS(Error, second.reserve(slot));
  first.reset();
  CHECK(push_value(second, 2));
  std::uint64_t value = 0;
  CHECK(pop_value(second, value) == RingStatus::ok && value == 1);
  CHECK(pop_value(second, value) == RingStatus::ok && value == 2);
}

TEST(mpmc_four_by_four_threads_lose_nothing_and_keep_each_producers_order) {
  constexpr std::uint64_t kThreads = 4;
  constexpr std::uint64_t kEach = kMessages / kThreads;
  const auto memory = ring_memory<MpmcRing>(64, 8);
  MpmcRing ring(memory.shared, memory.bytes);
  std::atomic<std::uint64_t> sum{0};
  std::atomic<std::uint64_t> count{0};
  std::vector<std::thread> producers;
  std::vector<std::thread> consumers;
  for (std::uint64_t p = 0; p < kThreads; ++p) {
    producers.emplace_back([&ring, p] {
      for (std::uint64_t i = 1; i <= kEach; ++i) CHECK(push_value(ring, (p << 32U) | i));
    });
    consumers.emplace_back([&] {
      std::uint64_t last[kThreads] = {};
      std::uint64_t value = 0;
      while (pop_value(ring, value) == RingStatus::ok) {
        const std::uint64_t from = value >> 32U;
        const std::uint64_t number = value & 0xFFFFFFFFU;
        CHECK(number > last[from]);
        last[from] = number;
        sum += number;
        ++count;
      }
    });
  }
  for (auto& thread : producers) thread.join();
  ring.close();
  for (auto& thread : consumers) thread.join();
  CHECK(count == kThreads * kEach);
  CHECK(sum == kThreads * kEach * (kEach + 1) / 2);
}

TEST(mpmc_abandoned_claims_are_skipped) {
  const auto memory = ring_memory<MpmcRing>(4, 8);
  MpmcRing ring(memory.shared, memory.bytes);
  for (int lap = 0; lap < 10; ++lap) {
    WriteSlot slot;
    CHECK(ring.reserve(slot) == RingStatus::ok);
    CHECK(push_value(ring, 5));
    std::uint64_t value = 0;
    CHECK(pop_value(ring, value, 1ms) == RingStatus::would_block);  // the claim ahead is alive
    ring.abandon(slot);
    CHECK(pop_value(ring, value) == RingStatus::ok && value == 5);
  }
}

namespace {

// Run `body` in a child that is then killed, as by the kernel, wherever `body` left off.
template <class Body>
pid_t killed_child(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    raise(SIGKILL);
  }
  siginfo_t info{};
  waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);  // leave it a zombie: it must count as dead
  return child;
}

void reap(pid_t child) {
  CHECK(waitpid(child, nullptr, 0) == child);
}

}  // namespace

TEST(spsc_dead_producer_is_noticed_after_its_last_message) {
  const auto memory = ring_memory<SpscRing>(8, 8);
  SpscRing ring(memory.shared, memory.bytes);
  const pid_t child = killed_child([&] {
    (void)push_value(ring, 1);
    WriteSlot slot;
    (void)ring.reserve(slot);
    ring.commit(slot, 8);  // never flushed
  });
  std::uint64_t value = 0;
  CHECK(pop_value(ring, value) == RingStatus::ok && value == 1);
  CHECK(pop_value(ring, value) == RingStatus::peer_died);
  CHECK(push_value(ring, 2));  // we take the dead producer's place
  CHECK(pop_value(ring, value) == RingStatus::ok && value == 2);
  CHECK(pop_value(ring, value, 50ms) == RingStatus::would_block);
  reap(child);
}

TEST(spsc_dead_consumer_is_noticed_and_its_unreleased_message_comes_again) {
  const auto memory = ring_memory<SpscRing>(2, 8);
  SpscRing ring(memory.shared, memory.bytes);
  CHECK(push_value(ring, 1) && push_value(ring, 2));
  const pid_t child = killed_child([&] {
    ReadSlot slot;
    (void)ring.peek(slot);
  });
  std::uint64_t value = 3;
  CHECK(headrace::push(ring, &value, sizeof(value), 20s) == RingStatus::peer_died);
  CHECK(pop_value(ring, value) == RingStatus::ok && value == 1);
  CHECK(push_value(ring, 3));
  reap(child);
}

TEST(mpmc_dead_producers_claim_is_skipped_and_the_others_go_on) {
  const auto memory = ring_memory<MpmcRing>(4, 8);
  MpmcRing ring(memory.shared, memory.bytes);
  std::uint64_t value = 0;
  for (std::uint64_t lap = 0; lap < 6; ++lap) {
    const pid_t child = killed_child([&] {
      (void)push_value(ring, 100 + lap);
      WriteSlot slot;
      (void)ring.reserve(slot);
    });
    CHECK(push_value(ring, lap));
    CHECK(pop_value(ring, value) == RingStatus::ok && value == 100 + lap);
    CHECK(pop_value(ring, value) == RingStatus::ok && value == lap);
    CHECK(pop_value(ring, value, 1ms) == RingStatus::would_block);  // we are a live producer ourselves
    reap(child);
  }
}

TEST(mpmc_dead_consumers_slot_is_taken_back) {
  const auto memory = ring_memory<MpmcRing>(2, 8);
  MpmcRing ring(memory.shared, memory.bytes);
  CHECK(push_value(ring, 1) && push_value(ring, 2));
  const pid_t child = killed_child([&] {
    ReadSlot slot;
    (void)ring.peek(slot);
  });
  std::uint64_t value = 0;
  CHECK(push_value(ring, 3));                                     // needs the slot the dead consumer held
  CHECK(pop_value(ring, value) == RingStatus::ok && value == 2);  // 1 went with it: at most once
  CHECK(pop_value(ring, value) == RingStatus::ok && value == 3);
  reap(child);
}

TEST(mpmc_kill_between_a_claim_and_its_index_is_made_good) {
  const auto memory = ring_memory<MpmcRing>(4, 8);
  auto* header = static_cast<headrace::ring_detail::Header*>(memory.shared.get());
  MpmcRing ring(memory.shared, memory.bytes);
  const pid_t child = killed_child([&] {
    WriteSlot slot;
    (void)ring.reserve(slot);
  });
  header->tail.fetch_sub(1);  // as if the kill had come one instruction earlier
  std::uint64_t value = 0;
  CHECK(push_value(ring, 1) && push_value(ring, 2));
  CHECK(pop_value(ring, value) == RingStatus::ok && value == 1);
  header->head.fetch_sub(1);  // the same at the other end
  CHECK(pop_value(ring, value) == RingStatus::ok && value == 2);
  for (std::uint64_t i = 0; i < 4; ++i) CHECK(push_value(ring, i, 0s));
  for (std::uint64_t i = 0; i < 4; ++i) CHECK(pop_value(ring, value, 0s) == RingStatus::ok && value == i);
  reap(child);
}

TEST(mpmc_all_producers_dead_is_told_to_the_consumer) {
  const auto memory = ring_memory<MpmcRing>(4, 8);
  MpmcRing ring(memory.shared, memory.bytes);
  const pid_t child = killed_child([&] { (void)push_value(ring, 1); });
  std::uint64_t value = 0;
  CHECK(pop_value(ring, value) == RingStatus::ok && value == 1);
  CHECK(pop_value(ring, value) == RingStatus::peer_died);
  reap(child);
}

TEST(mpmc_table_of_participants_reuses_the_dead) {
  const auto memory = ring_memory<MpmcRing>(4, 8);
  std::vector<std::unique_ptr<MpmcRing>> live;
  const pid_t child = killed_child([&] {
    MpmcRing* leaked = new MpmcRing(memory.shared, memory.bytes);
    WriteSlot slot;
    (void)leaked->reserve(slot);
  });
  for (std::size_t i = 0; i < headrace::ring_detail::kMaxParticipants; ++i) {
    live.push_back(std::make_unique<MpmcRing>(memory.shared, memory.bytes));
    if (i + 1 < headrace::ring_detail::kMaxParticipants) {
      std::uint64_t value = 0;
      CHECK(pop_value(*live.back(), value, 0s) == RingStatus::would_block);
    } else {
      CHECK(push_value(*live.back(), 9, 0s));  // the last place was the dead one's, with its claim
      std::uint64_t value = 0;
      CHECK(pop_value(*live.back(), value, 0s) == RingStatus::ok && value == 9);
    }
  }
  MpmcRing one_too_many(memory.shared, memory.bytes);
  WriteSlot slot;
  CHECK_THROWS(Error, one_too_many.reserve(slot));
  live.clear();
  CHECK(one_too_many.reserve(slot) == RingStatus::ok);
  one_too_many.abandon(slot);
  reap(child);
}
