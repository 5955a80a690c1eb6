#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "check.hpp"
#include "headrace/error.hpp"
#include "headrace/rl/replay.hpp"
#include "rl_replay_memory.hpp"

using headrace::Error;
using headrace::rl::ReplayColumn;
using headrace::rl::ReplayRing;
using replay_test::make_ring;
using replay_test::Memory;
using replay_test::Rows;

namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kMany = 20'000;
#else
constexpr std::uint64_t kMany = 300'000;
#endif

const std::vector<std::size_t> kOdd = {1, 3, 16, 2, 33, 8, 5, 12, 4, 7};

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

// Every finished row is whole; returns how many there are.
std::size_t check_rows(const ReplayRing& ring, const std::vector<std::size_t>& sizes) {
  Rows rows(sizes, ring.capacity());
  std::vector<std::int64_t> slots(ring.capacity());
  std::vector<std::int64_t> sequences(ring.capacity());
  for (std::size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<std::int64_t>(i);
  const std::size_t finished = ring.gather(slots.size(), slots.data(), rows.columns(), sequences.data());
  for (std::size_t i = 0; i < slots.size(); ++i) CHECK(sequences[i] == ReplayRing::kNone || rows.whole(i));
  return finished;
}

}  // namespace

TEST(replay_refuses_bad_geometry_and_memory) {
  const std::vector<std::size_t> none;
  const std::vector<std::size_t> many(33, 4);
  const std::vector<std::size_t> zero = {4, 0};
  const std::vector<std::size_t> good = {4, 8};
  CHECK_THROWS(Error, ReplayRing::bytes_for(none, 8, 0));
  CHECK_THROWS(Error, ReplayRing::bytes_for(many, 8, 0));
  CHECK_THROWS(Error, ReplayRing::bytes_for(zero, 8, 0));
  CHECK_THROWS(Error, ReplayRing::bytes_for(good, 0, 0));
  CHECK_THROWS(Error, ReplayRing::bytes_for(good, std::uint64_t{1} << 41U, 0));
  CHECK_THROWS(Error, ReplayRing::bytes_for(std::vector<std::size_t>{std::size_t{1} << 28U}, 1U << 30U, 0));
  CHECK_THROWS(Error, ReplayRing::bytes_for(good, 8, 1U << 20U));
  const Memory memory(ReplayRing::bytes_for(good, 8, 3));
  CHECK_THROWS(Error, ReplayRing(memory.shared, memory.bytes));  // blank
  CHECK_THROWS(Error, ReplayRing::format(memory.shared.get(), memory.bytes - 1, good, 8, "abc"));
  ReplayRing::format(memory.shared.get(), memory.bytes, good, 8, "abc");
  CHECK_THROWS(Error, ReplayRing(memory.shared, memory.bytes - 1));
  CHECK_THROWS(Error, ReplayRing(memory.shared, 64));
  const ReplayRing ring(memory.shared, memory.bytes);
  CHECK(ring.note() == "abc" && ring.capacity() == 8 && ring.n_fields() == 2 && ring.field_bytes(1) == 8);
  auto* header = static_cast<headrace::rl::replay_detail::Header*>(memory.shared.get());
  header->capacity = 1000;
  CHECK_THROWS(Error, ReplayRing(memory.shared, memory.bytes));
  header->capacity = 8;
  header->stride = 8;
  CHECK_THROWS(Error, ReplayRing(memory.shared, memory.bytes));
}

TEST(replay_small_rows_lie_in_one_cache_line) {
  CHECK(make_ring({16, 4, 4, 16, 1}, 4)->slot_bytes() == 64);
  CHECK(make_ring({4}, 4)->slot_bytes() == 16);
  CHECK(make_ring({8, 8}, 4)->slot_bytes() == 32);
  CHECK(make_ring({68, 68, 24, 4, 1}, 4)->slot_bytes() == 192);  // 182 bytes: 10 more make it whole lines
  CHECK(make_ring({57}, 4)->slot_bytes() == 72);                 // 128 would nearly double it
}

TEST(replay_keeps_the_newest_rows_byte_for_byte) {
  for (const std::uint64_t capacity : {1U, 3U, 64U, 100U}) {
    const auto ring = make_ring(kOdd, capacity);
    std::uint64_t pushed = 0;
    for (const std::size_t n : {1U, 2U, 7U, 64U, 65U, 200U}) {
      Rows rows(kOdd, n);
      rows.number(pushed);
      CHECK(ring->push(n, rows.columns()) == n);
      pushed += n;
      CHECK(ring->size() == std::min(pushed, capacity));
      Rows back(kOdd, ring->size());
      std::vector<std::int64_t> slots;
      std::vector<std::int64_t> sequences(ring->size());
      for (std::uint64_t p = ring->window().first; p < ring->window().end; ++p)
        slots.push_back(static_cast<std::int64_t>(ring->slot_of(p)));
      CHECK(ring->gather(slots.size(), slots.data(), back.columns(), sequences.data()) == slots.size());
      for (std::size_t i = 0; i < slots.size(); ++i) {
        const std::uint64_t position = ring->window().first + i;
        CHECK(sequences[i] == static_cast<std::int64_t>(position) && back.value(i) == position && back.whole(i));
      }
      const auto found = ring->check_integrity();
      CHECK(found.finished == ring->size() && found.empty == capacity - ring->size());
      CHECK(found.in_flight == 0 && found.abandoned == 0);
    }
    CHECK(ring->stats().contended == 0 && ring->stats().dropped == 0 && ring->stats().recovered == 0);
  }
}

TEST(replay_reads_and_writes_strided_columns) {
  const auto ring = make_ring({4, 8}, 16);
  struct Mixed {
    std::uint64_t wide;
    std::uint32_t pad;
    std::uint32_t narrow;
  };
  std::vector<Mixed> in(10);
  for (std::uint32_t i = 0; i < 10; ++i) in[i] = {i * 1000U, 7, i};
  const auto columns = [](std::vector<Mixed>& rows) {
    return std::vector<ReplayColumn>{{reinterpret_cast<std::byte*>(&rows[0].narrow), sizeof(Mixed)},
                                     {reinterpret_cast<std::byte*>(&rows[0].wide), sizeof(Mixed)}};
  };
  CHECK(ring->push(10, columns(in)) == 10);
  std::vector<Mixed> out(10);
  std::vector<std::int64_t> slots = {9, 8, 7, 6, 5, 4, 3, 2, 1, 12};
  std::vector<std::int64_t> sequences(10);
  CHECK(ring->gather(10, slots.data(), columns(out), sequences.data()) == 9);
  for (std::uint32_t i = 0; i < 9; ++i)
    CHECK(out[i].narrow == 9 - i && out[i].wide == (9 - i) * 1000 && out[i].pad == 0);
  CHECK(sequences[9] == ReplayRing::kNone);
  slots[3] = 16;
  CHECK_THROWS(Error, ring->gather(10, slots.data(), columns(out), sequences.data()));
  CHECK_THROWS(Error, ring->push(10, Rows({8}, 10).columns()));
  slots[3] = 6;
  CHECK_THROWS(Error, ring->gather(10, slots.data(), Rows({8}, 10).columns(), sequences.data()));
}

TEST(replay_draws_every_row_alike_and_the_same_again_for_the_same_seed) {
  const auto ring = make_ring({8}, 50);
  Rows rows({8}, 70);
  CHECK_THROWS(Error, ring->sample(1, {1, 0}, rows.columns(), nullptr, nullptr));
  rows.number(0);
  CHECK(ring->push(70, rows.columns()) == 70);
  constexpr std::size_t kDraws = 50 * 400;
  Rows drawn({8}, kDraws);
  std::vector<std::int64_t> slots(kDraws);
  std::vector<std::int64_t> sequences(kDraws);
  double worst = 0.0;
  std::vector<std::int64_t> first;
  for (const std::uint64_t number : {0U, 1U, 0U}) {
    ring->sample(kDraws, {12345, number}, drawn.columns(), slots.data(), sequences.data());
    std::vector<double> counts(50, 0.0);
    for (std::size_t i = 0; i < kDraws; ++i) {
      CHECK(drawn.value(i) == static_cast<std::uint64_t>(sequences[i]) && drawn.value(i) >= 20 && drawn.value(i) < 70);
      CHECK(static_cast<std::uint64_t>(slots[i]) == ring->slot_of(drawn.value(i)));
      counts[drawn.value(i) - 20] += 1.0;
    }
    double chi = 0.0;
    for (const double count : counts) chi += (count - 400.0) * (count - 400.0) / 400.0;
    worst = std::max(worst, chi);
    if (number == 0 && first.empty()) {
      first = sequences;
    } else {
      CHECK((sequences == first) == (number == 0));
    }
  }
  CHECK(worst < 85.0);  // 49 degrees of freedom: 85 is the 0.999 quantile
}

TEST(replay_clear_forgets_what_was_pushed_before) {
  const auto ring = make_ring({8}, 8);
  Rows rows({8}, 5);
  rows.number(0);
  CHECK(ring->push(5, rows.columns()) == 5);
  ReplayRing::Claim late;
  ring->claim(1, late);
  ring->clear();
  CHECK(ring->size() == 0 && ring->sequence(2) == ReplayRing::kNone);
  std::int64_t slot = 0;
  std::int64_t sequence = 0;
  ring->publish(late);  // a row that was begun before the clear is as old as the clear
  CHECK_THROWS(Error, ring->sample(1, {1, 0}, rows.columns(), &slot, &sequence));
  rows.number(100);
  CHECK(ring->push(1, rows.columns()) == 1);
  for (std::uint64_t i = 0; i < 20; ++i) {
    ring->sample(1, {1, i}, rows.columns(), &slot, &sequence);
    CHECK(rows.value(0) == 100 && sequence == 6);
  }
}

TEST(replay_passes_over_a_slot_that_a_live_process_is_writing) {
  const auto ring = make_ring({8}, 8);
  Rows rows({8}, 8);
  ReplayRing::Claim slow;
  ring->claim(2, slow);
  CHECK(slow.n == 2);
  rows.number(0);
  CHECK(ring->push(8, rows.columns()) == 8);
  CHECK(ring->push(8, rows.columns()) == 8);
  CHECK(ring->stats().contended > 0 && ring->stats().recovered == 0);
  CHECK(ring->check_integrity().in_flight == 2 && ring->check_integrity().finished == 6);
  std::vector<std::int64_t> slots(64);
  std::vector<std::int64_t> sequences(64);
  Rows drawn({8}, 64);
  ring->sample(64, {3, 1}, drawn.columns(), slots.data(), sequences.data());
  for (const std::int64_t slot : slots) CHECK(slot >= 2);
  const std::uint64_t mark = 77;
  std::vector<const std::byte*> sources(2, reinterpret_cast<const std::byte*>(&mark));
  ring->write(slow, 0, sources.data());
  ring->publish(slow);
  CHECK(ring->sequence(0) == 0 && ring->sequence(1) == 1);  // late, but whole
  ring->gather(2, std::vector<std::int64_t>{0, 1}.data(), drawn.columns(), sequences.data());
  std::uint64_t seen = 0;
  std::memcpy(&seen, drawn.columns()[0].data, 8);
  CHECK(seen == mark);
}

TEST(replay_leaves_newer_rows_alone_when_it_comes_a_lap_too_late) {
  const Memory memory(ReplayRing::bytes_for(std::vector<std::size_t>{8}, 4, 0));
  ReplayRing::format(memory.shared.get(), memory.bytes, std::vector<std::size_t>{8}, 4, "");
  ReplayRing ring(memory.shared, memory.bytes);
  Rows rows({8}, 12);
  rows.number(0);
  CHECK(ring.push(12, rows.columns()) == 12);
  static_cast<headrace::rl::replay_detail::Header*>(memory.shared.get())->tail.store(2);  // as if handed out long ago
  CHECK(ring.push(1, rows.columns()) == 0);
  for (std::uint64_t slot = 0; slot < 4; ++slot) CHECK(ring.sequence(slot) == static_cast<std::int64_t>(8 + slot));
}

TEST(replay_drops_rows_rather_than_wait_when_every_slot_is_held) {
  const auto ring = make_ring({8}, 4);
  ReplayRing::Claim held;
  ring->claim(4, held);
  CHECK(held.n == 4);
  Rows rows({8}, 3);
  CHECK(ring->push(3, rows.columns()) == 0);
  CHECK(ring->stats().dropped == 3);
  std::int64_t slot = 0;
  std::int64_t sequence = 0;
  CHECK_THROWS(Error, ring->sample(1, {1, 0}, rows.columns(), &slot, &sequence));
  ring->publish(held);
  CHECK(ring->push(3, rows.columns()) == 3);
}

TEST(replay_threads_never_see_a_torn_row) {
  const auto ring = make_ring(kOdd, 97);
  std::atomic<int> pushing{3};
  std::vector<std::thread> threads;
  for (std::uint64_t p = 0; p < 3; ++p) {
    threads.emplace_back([&, p] {
      Rows rows(kOdd, 1 + p * 20);
      std::uint64_t value = p << 40U;
      for (std::uint64_t done = 0; done < kMany / 3; done += rows.size()) {
        rows.number(value);
        value += rows.size();
        CHECK(ring->push(rows.size(), rows.columns()) == rows.size());
      }
      --pushing;
    });
  }
  for (std::uint64_t s = 0; s < 2; ++s) {
    threads.emplace_back([&, s] {
      Rows rows(kOdd, 70);
      std::vector<std::int64_t> slots(70);
      std::vector<std::int64_t> sequences(70);
      while (ring->size() < 97) std::this_thread::yield();
      for (std::uint64_t number = 0; pushing > 0 || number < 10; ++number) {
        ring->sample(70, {s, number}, rows.columns(), slots.data(), sequences.data());
        for (std::size_t i = 0; i < 70; ++i) CHECK(rows.whole(i) && sequences[i] >= 0);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(check_rows(*ring, kOdd) == ring->check_integrity().finished);
  CHECK(ring->check_integrity().in_flight == 0 && ring->stats().recovered == 0 && ring->stats().dropped == 0);
}

TEST(replay_a_copy_does_not_count_when_the_slot_changed_meanwhile) {
  const Memory memory(ReplayRing::bytes_for(std::vector<std::size_t>{8}, 4, 0));
  ReplayRing::format(memory.shared.get(), memory.bytes, std::vector<std::size_t>{8}, 4, "");
  ReplayRing ring(memory.shared, memory.bytes);
  Rows rows({8}, 4);
  rows.number(1000);
  CHECK(ring.push(4, rows.columns()) == 4);
  // The copy of slot 2 goes over that very slot's word: it has changed by the time the row was copied.
  auto* word = static_cast<std::byte*>(memory.shared.get()) + (memory.bytes - 2 * ring.slot_bytes());
  const std::vector<std::int64_t> slots = {1, 2};
  std::vector<std::int64_t> sequences(2);
  const std::vector<ReplayColumn> columns = {{word, 0}};
  CHECK(ring.gather(2, slots.data(), columns, sequences.data()) == 1);
  CHECK(sequences[0] == 1 && sequences[1] == ReplayRing::kNone);
}

TEST(replay_takes_over_what_a_killed_process_was_writing) {
  const auto ring = make_ring(kOdd, 10);
  Rows rows(kOdd, 10);
  const pid_t child = killed_child([&] {
    rows.number(500);
    (void)ring->push(3, rows.columns());
    ReplayRing::Claim claim;
    ring->claim(4, claim);
    const std::vector<const std::byte*> sources(4, rows.columns()[2].data);
    ring->write(claim, 2, sources.data());
  });
  auto found = ring->check_integrity();
  CHECK(found.finished == 3 && found.abandoned == 4 && found.in_flight == 0 && found.empty == 3);
  Rows drawn(kOdd, 40);
  std::vector<std::int64_t> slots(40);
  std::vector<std::int64_t> sequences(40);
  ring->sample(40, {9, 0}, drawn.columns(), slots.data(), sequences.data());
  for (std::size_t i = 0; i < 40; ++i) CHECK(drawn.whole(i) && sequences[i] < 3);
  rows.number(0);
  CHECK(ring->push(10, rows.columns()) == 10);
  CHECK(ring->stats().recovered == 4 && ring->stats().contended == 0);
  found = ring->check_integrity();
  CHECK(found.finished == 10 && found.abandoned == 0);
  CHECK(check_rows(*ring, kOdd) == 10);
  reap(child);
}

TEST(replay_survives_kills_at_any_instant) {
  const auto ring = make_ring(kOdd, 200);
  Rows rows(kOdd, 30);
  for (std::uint64_t round = 0; round < 12; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      for (std::uint64_t value = round << 32U;; value += 30) {
        rows.number(value);
        (void)ring->push(30, rows.columns());
      }
    }
    const std::uint64_t before = ring->window().end;
    while (ring->window().end < before + 100) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(300 + round * 97));
    kill(child, SIGKILL);
    siginfo_t info{};
    waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
    (void)check_rows(*ring, kOdd);
    const std::uint64_t abandoned = ring->check_integrity().abandoned;
    const std::uint64_t recovered = ring->stats().recovered;
    rows.number(round);
    for (int i = 0; i < 20; ++i) CHECK(ring->push(30, rows.columns()) == 30);
    CHECK(ring->check_integrity().abandoned == 0 && ring->check_integrity().finished == 200);
    CHECK(ring->stats().recovered == recovered + abandoned);
    CHECK(check_rows(*ring, kOdd) == 200);
    reap(child);
  }
  CHECK(ring->stats().dropped == 0);
}

TEST(replay_table_of_participants_reuses_the_dead) {
  constexpr std::uint64_t kCapacity = 4096;  // so many that nobody gets to the dead one's slots
  const Memory memory(ReplayRing::bytes_for(std::vector<std::size_t>{8}, kCapacity, 0));
  ReplayRing::format(memory.shared.get(), memory.bytes, std::vector<std::size_t>{8}, kCapacity, "");
  const pid_t child = killed_child([&] {
    auto* leaked = new ReplayRing(memory.shared, memory.bytes);
    ReplayRing::Claim claim;
    leaked->claim(2, claim);
  });
  std::vector<std::unique_ptr<ReplayRing>> live;
  Rows rows({8}, 1);
  rows.number(9);
  for (std::size_t i = 0; i < headrace::rl::replay_detail::kMaxParticipants; ++i) {
    live.push_back(std::make_unique<ReplayRing>(memory.shared, memory.bytes));
    CHECK(live.back()->push(1, rows.columns()) == 1);
  }
  const auto found = live[0]->check_integrity();
  CHECK(live[0]->stats().recovered == 2 && found.abandoned == 0 && found.in_flight == 0);
  CHECK(found.finished == headrace::rl::replay_detail::kMaxParticipants);
  ReplayRing one_too_many(memory.shared, memory.bytes);
  CHECK_THROWS(Error, one_too_many.push(1, rows.columns()));
  live.clear();
  CHECK(one_too_many.push(1, rows.columns()) == 1);
  reap(child);
}

TEST(replay_integrity_names_a_word_that_cannot_be) {
  const Memory memory(ReplayRing::bytes_for(std::vector<std::size_t>{8}, 4, 0));
  ReplayRing::format(memory.shared.get(), memory.bytes, std::vector<std::size_t>{8}, 4, "");
  ReplayRing ring(memory.shared, memory.bytes);
  Rows rows({8}, 4);
  rows.number(0);
  CHECK(ring.push(4, rows.columns()) == 4);
  auto* slots = static_cast<std::byte*>(memory.shared.get()) + (memory.bytes - 4 * ring.slot_bytes());
  auto* word = reinterpret_cast<std::uint64_t*>(slots + 2 * ring.slot_bytes());
  const std::uint64_t good = *word;
  for (const std::uint64_t bad : {good + (std::uint64_t{1} << 12U), good + (std::uint64_t{4} << 12U), good | 3U}) {
    *word = bad;
    CHECK_THROWS(Error, ring.check_integrity());
  }
  *word = good;
  CHECK(ring.check_integrity().finished == 4);
}
